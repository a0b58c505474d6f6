"""Check the built dashboards against Grafana's own types: `python tests/dashboards/grafana_schema.py`.

`@grafana/schema` has no JSON schema, but the TypeScript types that Grafana is built with. So each dashboard becomes a
typed literal, and the compiler names wrong values and unknown keys. Needs npm and its registry once; what it fetches
(24 MB, nothing of it runs) stays in .cache. `make check` runs it only where that folder is there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache/grafana-schema"
PACKAGES = ("@grafana/schema@11.6.16", "typescript@5.7.3")
TSC = CACHE / "node_modules/typescript/bin/tsc"
_RAW = "./node_modules/@grafana/schema/dist/esm/raw"

HEAD = f"""
import type {{ Dashboard, Panel, RowPanel }} from "{_RAW}/dashboard/x/dashboard_types.gen";
import type * as timeseries from "{_RAW}/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen";
import type * as stat from "{_RAW}/composable/stat/panelcfg/x/StatPanelCfg_types.gen";
import type * as table from "{_RAW}/composable/table/panelcfg/x/TablePanelCfg_types.gen";
// JSON has the values of enums, not their names.
type Plain<T> = T extends string ? `${{T}}` : T extends Array<infer U> ? Plain<U>[]
  : T extends object ? {{ [K in keyof T]: Plain<T[K]> }} : T;
type Fields = NonNullable<Plain<Panel["fieldConfig"]>>;
type Typed<Kind, Options, Config> = Omit<Plain<Panel>, "type" | "options" | "fieldConfig" | "targets"> & {{
  type: Kind; options?: Partial<Plain<Options>>; targets: Array<Record<string, unknown>>;
  fieldConfig?: Omit<Fields, "defaults"> & {{
    defaults: Omit<Fields["defaults"], "custom"> & {{ custom?: Partial<Plain<Config>> }}
  }};
}};
type Known = Plain<RowPanel> | Typed<"timeseries", timeseries.Options, timeseries.FieldConfig>
  | Typed<"stat", stat.Options, {{}}> | Typed<"table", table.Options, table.FieldConfig>
  | Typed<"traces", {{}}, {{}}>;
// The SDK writes an interval variable's fields with every kind.
type Variable = NonNullable<NonNullable<Plain<Dashboard["templating"]>>["list"]>[number]
  & {{ auto?: boolean; auto_min?: string; auto_count?: number }};
type Board = Omit<Plain<Dashboard>, "panels" | "templating">
  & {{ panels: Known[]; templating: {{ list: Variable[] }} }};
"""


def find_problems(boards: dict[str, Any]) -> list[str]:
    """Return what the compiler says of dashboards (name -> JSON); needs the packages in the cache."""
    source = CACHE / "check.ts"
    lines = [f"export const board{n}: Board = {json.dumps(board)};" for n, board in enumerate(boards.values())]
    source.write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")
    command = ["node", str(TSC), "--noEmit", "--strict", "--skipLibCheck", "--moduleResolution", "bundler",
               "--module", "esnext", "--target", "es2022", str(source)]  # fmt: skip
    done = subprocess.run(command, cwd=CACHE, capture_output=True, text=True, check=False)
    return [line for line in done.stdout.splitlines() if line.strip()] or ([] if not done.returncode else [done.stderr])


def fetch() -> None:
    """Install the packages into the cache; install scripts don't run."""
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / "package.json").write_text('{"private": true}\n', encoding="utf-8")
    command = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-save", *PACKAGES]
    subprocess.run(command, cwd=CACHE, check=True)


def main() -> int:
    if not TSC.exists():
        fetch()
    built = ROOT / "dashboards/built"
    boards = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(built.glob("*.json"))}
    problems = find_problems(boards)
    print("\n".join([*problems, f"{len(boards)} dashboards, {len(problems)} problems"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
