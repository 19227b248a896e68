// 1. Read the figures, tables and themes from the page's own data. 2. Draw, the first figure first. 3. Follow the reader's
// theme. 4. Print light and as wide as the paper.

const data = JSON.parse(document.getElementById("streamlens-data").textContent);
data.figures = put(data.figures, data.pool);
const plots = [...document.querySelectorAll(".plot")];
const button = document.getElementById("theme");
const system = matchMedia("(prefers-color-scheme: dark)");
const PAPER = 690; // px, an A4 page between its margins
let chosen = null; // null follows the system

const isDark = () => (chosen === null ? system.matches : chosen);
const themeNow = () => data.themes[isDark() ? "dark" : "light"];

function restyle(theme) {
  return Promise.all(plots.map((plot, i) => plot._fullLayout && Plotly.relayout(plot, look(data.figures[i], theme))));
}

function follow() {
  const dark = isDark();
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  button.setAttribute("aria-pressed", String(dark));
  return restyle(themeNow());
}

function setWidth(px) {
  for (const plot of plots.filter((drawn) => drawn._fullLayout)) {
    plot.style.setProperty("min-width", px ? "0" : "");
    plot.style.setProperty("width", px ? `${px}px` : "");
    Plotly.relayout(plot, { width: px });
  }
}

async function drawAll() {
  for (const [i, plot] of plots.entries()) {
    await draw(plot, data.figures[i], themeNow());
    if (i === 0) document.documentElement.dataset.first = String(performance.now());
    await new Promise((done) => setTimeout(done)); // what is drawn is shown, and the page answers
  }
  document.documentElement.dataset.drawn = "true";
}

button.addEventListener("click", () => {
  chosen = !isDark();
  follow();
});
system.addEventListener("change", () => {
  if (chosen === null) follow();
});
addEventListener("resize", () => plots.forEach((plot) => plot._fullLayout && keepRows(plot)));
addEventListener("beforeprint", () => {
  document.documentElement.dataset.theme = "light";
  restyle(data.themes.light);
  setWidth(PAPER);
});
addEventListener("afterprint", () => {
  setWidth(null);
  follow();
});

document.documentElement.dataset.theme = isDark() ? "dark" : "light";
button.setAttribute("aria-pressed", String(isDark()));
offer(data.tables);
data.switches.forEach((held, number) =>
  steer({ ...held, number }, data.pool, (place, figure) => {
    data.figures[place] = figure;
    return redraw(plots[place], figure, themeNow());
  }),
);
drawAll();
