// The official Kusto language service, asked from Node: one query a line in (JSON texts), one answer a line out.
// Needs the npm package @kusto/language-service-next (MIT) in the folder that the first argument names.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const folder = path.join(process.argv[2], "node_modules", "@kusto", "language-service-next");
for (const file of ["bridge.min.js", "Kusto.Language.Bridge.min.js"]) {
  vm.runInThisContext(fs.readFileSync(path.join(folder, file), "utf8"));
}
const Language = Kusto.Language;
const globals = Language.GlobalState.Default;

function* each(list) {
  const items = Bridge.getEnumerator(list);
  while (items.moveNext()) yield items.Current;
}

for (const line of fs.readFileSync(0, "utf8").split("\n")) {
  if (!line.trim()) continue;
  const code = Language.KustoCode.ParseAndAnalyze(JSON.parse(line), globals);
  const errors = [...each(code.GetDiagnostics())].filter((d) => d.Severity === "Error").map((d) => `${d.Code} ${d.Message}`);
  const columns = code.ResultType && code.ResultType.Columns;
  const shown = columns ? [...each(columns)].map((c) => [c.Name, c.Type ? c.Type.Name : ""]) : null;
  console.log(JSON.stringify({ errors, columns: shown }));
}
