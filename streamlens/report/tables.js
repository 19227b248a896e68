// Tables: columns of plain values, or of texts and which of them; handed out as CSV or JSON when asked for.

function column(data) {
  return data.texts ? data.codes.map((code) => (code < 0 ? null : data.texts[code])) : data.values;
}

function csvCell(value) {
  if (value === null) return "";
  if (typeof value === "boolean") return value ? "True" : "False";
  const text = String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function asCsv(table) {
  const columns = table.columns.map(column);
  const lines = [table.columns.map((data) => csvCell(data.name)).join(",")];
  for (let row = 0; row < (columns[0] || []).length; row++) {
    lines.push(columns.map((values) => csvCell(values[row])).join(","));
  }
  return `${lines.join("\n")}\n`;
}

function asJson(table) {
  const columns = table.columns.map(column);
  const rows = (columns[0] || []).map((_, row) =>
    Object.fromEntries(table.columns.map((data, i) => [data.name, columns[i][row]])),
  );
  return JSON.stringify(rows);
}

function save(name, type, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function offer(tables) {
  const kinds = { csv: ["text/csv", asCsv], json: ["application/json", asJson] };
  for (const button of document.querySelectorAll("button[data-table]")) {
    const table = tables[button.dataset.table];
    const [type, text] = kinds[button.dataset.kind];
    button.addEventListener("click", () => save(`${table.file}.${button.dataset.kind}`, type, text(table)));
  }
}
