// Switches: a column of buttons, one of which may be pressed; it chooses the figures beside it.

function steer({ number, choices, ...others }, pool, show) {
  const { plots, start, rest } = put(others, pool);
  const root = document.querySelector(`[data-switch="${number}"]`);
  const buttons = [...root.querySelectorAll(".branches button")];
  const says = root.querySelector(".headline");
  const panels = [...root.querySelectorAll(".drawn")];

  function choose(chosen) {
    const began = performance.now();
    buttons.forEach((button, n) => button.setAttribute("aria-pressed", String(n === chosen)));
    for (const panel of panels) panel.hidden = chosen === null;
    if (chosen === null) {
      says.textContent = rest;
      return;
    }
    const choice = put(choices[chosen], pool);
    says.textContent = choice.says;
    Promise.all(choice.figures.map((figure, n) => show(plots[n], figure))).then(() => {
      root.dataset.shown = String(chosen);
      root.dataset.took = String(performance.now() - began);
    });
  }

  function move(to) {
    const next = Math.max(0, Math.min(buttons.length - 1, to));
    buttons.forEach((button, n) => (button.tabIndex = n === next ? 0 : -1));
    buttons[next].focus();
  }

  buttons.forEach((button, n) => {
    button.addEventListener("click", () => {
      move(n);
      choose(button.getAttribute("aria-pressed") === "true" ? null : n);
    });
    button.addEventListener("keydown", (event) => {
      const steps = { ArrowDown: n + 1, ArrowUp: n - 1, Home: 0, End: buttons.length - 1 };
      if (!(event.key in steps)) return;
      event.preventDefault();
      move(steps[event.key]);
    });
  });
  const column = root.querySelector(".branches");
  column.scrollTop = buttons[start].offsetTop - column.clientHeight / 2;
}
