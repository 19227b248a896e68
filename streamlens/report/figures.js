// Figures: drawn in the theme that is asked for; row labels and colour bar stay in sight while a wide one scrolls.

const CONFIG = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"] };

// What stands in several figures is in the page once, in a pool; this puts it back.
function put(value, pool) {
  if (Array.isArray(value)) return value.map((item) => put(item, pool));
  if (value === null || typeof value !== "object") return value;
  if ("$" in value) return structuredClone(pool[value.$]); // plotly writes into what it is given
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, put(item, pool)]));
}

function look(figure, theme) {
  const scale = (figure.layout.meta || {}).scale;
  return scale ? { template: theme.template, "coloraxis.colorscale": theme.scales[scale] } : { template: theme.template };
}

function dressed(figure, theme) {
  const wanted = look(figure, theme);
  const layout = { ...figure.layout, template: wanted.template };
  const colours = wanted["coloraxis.colorscale"];
  return colours ? { ...layout, coloraxis: { ...layout.coloraxis, colorscale: colours } } : layout;
}

function draw(plot, figure, theme) {
  return Plotly.newPlot(plot, figure.data, dressed(figure, theme), CONFIG).then(() => {
    plot.on("plotly_afterplot", () => keepRows(plot));
    keepRows(plot);
  });
}

function redraw(plot, figure, theme) {
  const summary = (figure.layout.meta || {}).summary;
  if (summary) plot.setAttribute("aria-label", summary);
  plot.closest(".drawn").querySelector(".title").replaceChildren(
    ...(figure.title || []).map((line) => Object.assign(document.createElement("p"), { textContent: line })),
  );
  return Plotly.react(plot, figure.data, dressed(figure, theme), CONFIG);
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
