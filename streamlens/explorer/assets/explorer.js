"use strict";
// 1. What this tab shows is its URL. A press changes the URL; the page follows it at once, the numbers when they come.
// 2. One question at a time: while the server computes, only the last change waits.
// 3. Figures come without a theme; this puts one on, and wraps their titles to the width there is.
(() => {
  const CYCLE = { on: "off", off: "half", half: "on" };
  const PRESSED = { on: "true", half: "mixed", off: "false" };
  const FIELDS = ["prompt", "for", "against", "second"];
  const LONGEST = 20000; // characters; the address holds them
  const SELECTS = { reader: "", where: "here", pin: "" };
  const system = matchMedia("(prefers-color-scheme: dark)");
  const written = {}; // what the address put into each field
  const past = []; // the edits before each change, for Undo
  let pending = null; // the question the server is working on

  const $ = (id) => document.getElementById(id);
  const each = (selector, act) => document.querySelectorAll(selector).forEach(act);
  const set = (id, props) => window.dash_clientside.set_props(id, props);
  const params = () => new URLSearchParams(location.search);
  // what the server is asked: everything but which of the two pages is shown
  const question = () => {
    const asked = params();
    asked.delete("tab");
    return `?${asked}`;
  };

  // --- the URL ---------------------------------------------------------------------------------------------------

  function edits(asked = params()) {
    const found = new Map();
    for (const text of (asked.get("edits") || "").split(",").filter(Boolean)) {
      const [label, factor] = text.split("=");
      found.set(label, factor === undefined ? "off" : "half");
    }
    return found;
  }

  function go(change) {
    const asked = params();
    for (const [name, value] of Object.entries(change)) {
      if (value === "" || value === null) asked.delete(name);
      else asked.set(name, value);
    }
    const search = `?${asked}`;
    if (search === location.search) return;
    history.pushState({}, "", search);
    follow();
  }

  function edit(change) {
    past.push(params().get("edits") || "");
    go({ edits: change });
  }

  function press(label) {
    const found = edits();
    const next = CYCLE[found.get(label) || "on"];
    if (next === "on") found.delete(label);
    else found.set(label, next);
    edit([...found].map(([name, state]) => (state === "off" ? name : `${name}=0.5`)).join(","));
  }

  function ask() {
    const change = {};
    for (const name of FIELDS) change[name] = $(name).value;
    if (FIELDS.some((name) => change[name].length > LONGEST)) {
      $("error").textContent = `A sentence here has up to ${LONGEST} characters.`;
      return;
    }
    const asked = params();
    if (change.prompt !== (asked.get("prompt") || "")) change.pos = "";
    if (change.second !== (asked.get("second") || "")) change.pos2 = "";
    if (change.for) change.reader = "";
    go(change);
  }

  // --- the page follows the URL ----------------------------------------------------------------------------------

  function follow() {
    show();
    if (params().get("tab") === "lab") return set("lab-shown", { data: true });
    if (pending === null) {
      const asked = question();
      if (asked !== answered) start(asked);
    }
  }

  let answered = null;

  function start(asked) {
    pending = asked;
    busy(true);
    set("request", { data: asked });
  }

  function busy(yes) {
    const main = $("explore");
    if (!main) return;
    main.setAttribute("aria-busy", String(yes));
    $("status").textContent = yes ? "Computing …" : "";
  }

  function show() {
    const asked = params();
    const found = edits(asked);
    each('[data-act="write"]', (button) => {
      const { label } = button.dataset;
      const state = found.get(label) || "on";
      button.setAttribute("aria-pressed", PRESSED[state]);
      button.setAttribute("aria-label", `${label}: ${state}`);
    });
    const last = document.querySelectorAll('[data-act="token"]').length - 1;
    const picked = { token: asked.get("pos") || String(last), token2: asked.get("pos2") };
    each('[data-act^="token"]', (button) =>
      button.setAttribute("aria-pressed", String(button.dataset.position === picked[button.dataset.act])),
    );
    for (const name of FIELDS) {
      const value = asked.get(name) || "";
      if (written[name] !== value) $(name).value = written[name] = value; // what is being typed stays
    }
    for (const [name, value] of Object.entries(SELECTS)) if ($(name)) $(name).value = asked.get(name) || value;
    const tab = asked.get("tab") === "lab" ? "lab" : "explore";
    for (const name of ["explore", "lab"]) $(name).hidden = name !== tab;
    each('[role="tab"]', (button) => button.setAttribute("aria-selected", String(button.dataset.tab === tab)));
    if ($("undo")) $("undo").setAttribute("aria-disabled", String(past.length === 0));
    if ($("reset")) $("reset").setAttribute("aria-disabled", String(found.size === 0));
  }

  // A part that is not on is in sight when the page comes: a head behind its attention, a layer far down the column.
  function reveal() {
    const changed = [...document.querySelectorAll('[data-act="write"]:not([aria-pressed="true"])')];
    for (const group of changed.map((button) => button.closest(".heads")).filter(Boolean)) {
      group.hidden = false;
      document.querySelector(`[aria-controls="${group.id}"]`).setAttribute("aria-expanded", "true");
    }
    const column = $("column");
    if (changed.length) column.scrollTop = changed[0].offsetTop - column.offsetTop - 60;
  }

  // --- presses and keys ------------------------------------------------------------------------------------------

  const ACTS = {
    write: (button) => press(button.dataset.label),
    token: (button) => go({ pos: button.dataset.position }),
    token2: (button) => go({ pos2: button.dataset.position }),
    tab: (button) => go({ tab: button.dataset.tab === "lab" ? "lab" : "" }),
    run: ask,
    reset: () => params().get("edits") && edit(""),
    undo: () => past.length && go({ edits: past.pop() }),
    heads: (button) => {
      const group = $(button.getAttribute("aria-controls"));
      group.hidden = !group.hidden;
      button.setAttribute("aria-expanded", String(!group.hidden));
    },
    theme: () => theme(!isDark()),
    copy: (button) => copy($("python").textContent, button),
  };

  addEventListener("click", (event) => {
    const button = event.target.closest("button[data-act]");
    if (button && ACTS[button.dataset.act]) ACTS[button.dataset.act](button);
  });

  addEventListener("change", (event) => {
    const name = event.target.dataset && event.target.dataset.act;
    if (!(name in SELECTS)) return;
    const { value } = event.target;
    go(name === "reader" && value ? { reader: value, for: "", against: "" } : { [name]: value === SELECTS[name] ? "" : value });
  });

  addEventListener("keydown", (event) => {
    const { target, key } = event;
    if (target.matches("textarea[data-field]")) {
      if (key === "Enter" && (event.ctrlKey || event.metaKey || target.rows === 1)) {
        event.preventDefault();
        ask();
      }
      return;
    }
    const act = target.dataset && target.dataset.act;
    const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[key];
    if (!step || !["write", "token", "token2", "tab"].includes(act)) return;
    const among = [...document.querySelectorAll(`[data-act="${act}"]`)].filter((other) => other.offsetParent !== null);
    const next = among[among.indexOf(target) + step];
    event.preventDefault();
    if (next) next.focus();
  });

  addEventListener("popstate", follow);

  async function copy(text, button) {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      // no clipboard here: show the text instead, selected
      $("python").closest("details").open = true;
      getSelection().selectAllChildren($("python"));
      button.textContent = "Selected below";
    }
    setTimeout(() => (button.textContent = "Copy as Python"), 2000);
  }

  // --- theme -----------------------------------------------------------------------------------------------------

  function isDark() {
    const chosen = sessionStorage.getItem("theme");
    return chosen === null ? system.matches : chosen === "dark";
  }

  function theme(dark) {
    if (dark !== undefined) sessionStorage.setItem("theme", dark ? "dark" : "light");
    const name = isDark() ? "dark" : "light";
    document.documentElement.dataset.theme = name;
    if ($("theme-button")) $("theme-button").setAttribute("aria-pressed", String(name === "dark"));
    set("theme", { data: name });
  }

  system.addEventListener("change", () => theme());

  // --- figures ---------------------------------------------------------------------------------------------------

  const pen = document.createElement("canvas").getContext("2d");

  // As `plotly_escape`: plotly reads a little HTML, fills in %{...}, and reorders beside right-to-left letters.
  function escaped(text) {
    const inert = text
      .replaceAll("&", "&amp;")
      .replaceAll("<", "&lt;")
      .replaceAll(">", "&gt;")
      .replaceAll("%{", "%&#123;")
      .replaceAll("$", "&#36;");
    return /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/.test(text) ? `\u2068${inert}\u2069` : inert;
  }

  function lines(text, font, room) {
    pen.font = `${font} ${getComputedStyle(document.body).fontFamily}`;
    const fits = (line) => pen.measureText(line).width <= room;
    const made = [""];
    for (const word of text.split(" ")) {
      const joined = made.at(-1) ? `${made.at(-1)} ${word}` : word;
      if (fits(joined)) made[made.length - 1] = joined;
      else {
        if (made.at(-1)) made.push("");
        for (const char of word) {
          if (!fits(made.at(-1) + char)) made.push("");
          made[made.length - 1] += char;
        }
      }
    }
    return made;
  }

  // A figure's title is set to the width there is, and the picture stands below it.
  function wrapped({ data, layout }, width) {
    const { title, title_px: before } = layout.meta || {};
    const made = { ...layout, margin: { ...layout.margin } };
    if (title) {
      const room = Math.min(width, 980) - 24;
      const [heading, ...rest] = title;
      const heads = lines(heading, "bold 14px", room);
      const others = rest.flatMap((line) => lines(line, "12px", room));
      const text = [
        ...heads.map((line) => `<b>${escaped(line)}</b>`),
        ...others.map((line) => `<span style="font-size:12px">${escaped(line)}</span>`),
      ];
      const more = 18 + 20 * text.length - before;
      made.title = { ...layout.title, text: text.join("<br>") };
      made.margin.t += more;
      made.height += more;
    }
    const numbered = data.some((trace) => trace.type === "bar" && trace.textposition === "outside");
    const { range } = layout.xaxis || {};
    if (numbered && range && width < 590) {
      const span = range[1] - range[0]; // numbers beside the bars take more of a narrow picture
      made.xaxis = { ...layout.xaxis, range: [range[0] - span * 0.12, range[1] + span * 0.08] };
    }
    return made;
  }

  const streamlens = {
    // The server has answered, or the page has just come: ask what the URL says, unless it was just that.
    pump(done) {
      if (done === undefined || done === null) {
        if (!params().get("prompt")) {
          const tab = params().get("tab");
          history.replaceState({}, "", document.documentElement.dataset.start + (tab ? `&tab=${tab}` : ""));
        }
        theme();
        show();
        reveal();
      }
      answered = done || null;
      pending = null;
      busy(false);
      follow();
      return null;
    },

    draw(figure, name, themes) {
      if (!figure) return [{ data: [], layout: {} }, {}, true, ""];
      const look = themes[name || (isDark() ? "dark" : "light")];
      const meta = figure.layout.meta || {};
      const main = document.querySelector(".answers") || document.body;
      const width = Math.max(meta.min_width || 0, (main.clientWidth || document.body.clientWidth) - 2);
      const layout = { ...wrapped(figure, width), template: look.template };
      const style = { height: `${layout.height}px`, minWidth: `${meta.min_width || 0}px` };
      if (meta.scale) layout.coloraxis = { ...layout.coloraxis, colorscale: look.scales[meta.scale] };
      return [{ data: figure.data, layout }, style, false, meta.summary || ""];
    },

    slid: (value) => String(Math.round(Number(value) * 1000) / 1000).replace("-", "−"),

    // A bar stands at its row's number, or at its row's name where the axis has names.
    pin(clicked, figure) {
      const point = clicked && clicked.points && clicked.points[0];
      if (point && figure) {
        const { tickvals = [], ticktext = [] } = figure.layout.yaxis;
        go({ pin: ticktext[tickvals.indexOf(point.y)] || String(point.y) });
      }
      return null;
    },
  };
  window.dash_clientside = Object.assign({}, window.dash_clientside, { streamlens });

  // --- is the server still there? --------------------------------------------------------------------------------

  setInterval(async () => {
    if (pending === null || document.hidden) return;
    try {
      await fetch("alive");
    } catch {
      $("status").textContent = "The explorer does not answer: start it again, then reload this page.";
    }
  }, 5000);
})();
