"use strict";
// 1. Read the figures and the themes from the page's own data. 2. Draw. 3. Follow the reader's theme.
// 4. Keep row labels in sight while a wide figure scrolls. 5. Hand out the table. 6. Print light and as wide as the paper.
(() => {
  const data = JSON.parse(document.getElementById("streamlens-data").textContent);
  const plots = [...document.querySelectorAll(".plot")];
  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const PAPER = 690; // px, an A4 page between its margins
  let chosen = null; // null follows the system

  const isDark = () => (chosen === null ? system.matches : chosen);

  function look(figure, dark) {
    const theme = data.themes[dark ? "dark" : "light"];
    const scale = (figure.layout.meta || {}).scale;
    return scale ? { template: theme.template, "coloraxis.colorscale": theme.scales[scale] } : { template: theme.template };
  }

  function draw(plot, figure) {
    const config = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"] };
    const layout = { ...figure.layout, template: look(figure, isDark()).template };
    if (layout.meta && layout.meta.scale) {
      layout.coloraxis = { ...layout.coloraxis, colorscale: look(figure, isDark())["coloraxis.colorscale"] };
    }
    return Plotly.newPlot(plot, figure.data, layout, config).then(() => {
      plot.on("plotly_afterplot", () => keepRows(plot));
      keepRows(plot);
    });
  }

  function copy(nodes, name, top, width, height) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const size = { class: name, width, height, viewBox: `0 ${top} ${width} ${height}`, style: `top: ${top}px` };
    for (const [key, value] of Object.entries(size)) svg.setAttribute(key, value);
    svg.append(...nodes.map((node) => node.cloneNode(true)));
    return svg;
  }

  function keepRows(plot) {
    const panel = plot.closest(".panel");
    const rows = panel.querySelector(".rows");
    const labels = plot.querySelector(".yaxislayer-above");
    const wide = panel.scrollWidth > panel.clientWidth + 1 && labels !== null;
    rows.hidden = !wide;
    panel.classList.toggle("kept", wide);
    if (!wide) {
      panel.removeAttribute("tabindex");
      return rows.replaceChildren();
    }
    panel.tabIndex = 0; // so that the arrow keys scroll it
    const size = plot._fullLayout._size;
    const title = [...plot.querySelectorAll(".infolayer .gtitle, .infolayer .colorbar")];
    rows.replaceChildren(
      copy(title, "title", 0, panel.clientWidth, size.t),
      copy([labels], "labels", size.t - 4, size.l - 1, size.h + 8),
    );
  }

  function restyle(dark) {
    return Promise.all(plots.map((plot, i) => Plotly.relayout(plot, look(data.figures[i], dark))));
  }

  function follow() {
    const dark = isDark();
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    button.setAttribute("aria-pressed", String(dark));
    return restyle(dark);
  }

  function save(name, type, text) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  function setWidth(px) {
    for (const plot of plots) {
      plot.style.setProperty("min-width", px ? "0" : "");
      plot.style.setProperty("width", px ? `${px}px` : "");
      Plotly.relayout(plot, { width: px });
    }
  }

  button.addEventListener("click", () => {
    chosen = !isDark();
    follow();
  });
  system.addEventListener("change", () => {
    if (chosen === null) follow();
  });
  for (const [id, name, type, text] of data.downloads) {
    document.getElementById(id).addEventListener("click", () => save(name, type, text));
  }
  addEventListener("resize", () => plots.forEach(keepRows));
  addEventListener("beforeprint", () => {
    document.documentElement.dataset.theme = "light";
    restyle(false);
    setWidth(PAPER);
  });
  addEventListener("afterprint", () => {
    setWidth(null);
    follow();
  });

  document.documentElement.dataset.theme = isDark() ? "dark" : "light";
  button.setAttribute("aria-pressed", String(isDark()));
  Promise.all(plots.map((plot, i) => draw(plot, data.figures[i]))).then(() => {
    document.documentElement.dataset.drawn = "true";
  });
})();
