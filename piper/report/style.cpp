#include <piper/report/style.h>

namespace piper::report {

std::string_view style_sheet() {
  return R"css(
:root {
  color-scheme: light dark;
  --page: #f4f5f7; --card: #ffffff; --ink: #1c2430; --soft: #667085; --rule: #e3e6eb; --accent: #1f5fa8;
  --idle: #e9ebef; --chosen: #eaf3fc; --warn: #b42318; --warn-ground: #fdecea;
  --forward: #8fbce6; --forward-experts: #2f6fb5; --recompute: #b9a5dc; --backward: #f5bf85;
  --backward-experts: #d9701e; --update: #55a36c; --exchange: #b8357f; --transfer: #1f9d9a; --reduction: #96771b;
  --heat-low: #2f6fb5; --heat-even: #f1f2f4; --heat-high: #c9371f; --heat-ink: #1c2430;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #12151a; --card: #1b2027; --ink: #e6e9ee; --soft: #98a2b3; --rule: #2d343e; --accent: #7db8f5;
    --idle: #2a313b; --chosen: #1d3148; --warn: #ff9d8f; --warn-ground: #45211d;
    --forward: #6fa3d4; --forward-experts: #3d82cf; --recompute: #9482bd; --backward: #dca267;
    --backward-experts: #e07a2a; --update: #5fb279; --exchange: #d458a0; --transfer: #35b5b1; --reduction: #c09c34;
    --heat-low: #3d82cf; --heat-even: #2f3640; --heat-high: #e2573f; --heat-ink: #f2f4f7;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 1160px; margin: 0 auto; padding: 28px 20px 60px; }
header, section { background: var(--card); border: 1px solid var(--rule); border-radius: 10px;
  padding: 22px 28px 18px; margin-bottom: 18px; }
.brand { margin: 0; color: var(--accent); font-weight: 700; letter-spacing: .08em; text-transform: uppercase;
  font-size: 12px; }
h1 { font-size: 26px; line-height: 1.25; margin: 2px 0 6px; }
h1 span { font-weight: 400; color: var(--soft); }
h2 { font-size: 18px; margin: 0 0 10px; }
h3 { font-size: 14px; margin: 18px 0 6px; }
small { color: var(--soft); font-weight: 400; }
p { margin: 6px 0 10px; }
.absent { color: var(--soft); font-style: italic; }
.tiles { display: flex; flex-wrap: wrap; gap: 12px; margin: 14px 0 10px; }
.tile { flex: 1 1 180px; border: 1px solid var(--rule); border-radius: 8px; padding: 10px 14px; }
.tile span, .tile small { display: block; color: var(--soft); font-size: 12.5px; }
.tile b { display: block; font-size: 22px; font-weight: 650; font-variant-numeric: tabular-nums; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 18px; margin: 12px 0 4px; font-size: 14px; }
dt { color: var(--soft); }
dd { margin: 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; margin: 6px 0 12px; }
th { text-align: left; font-weight: 600; color: var(--soft); vertical-align: bottom; }
th, td { padding: 5px 10px; border-bottom: 1px solid var(--rule); white-space: pre-wrap; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
td.number { white-space: nowrap; }
.strong { font-weight: 600; }
td.strong { white-space: nowrap; }
td.words { font-weight: 600; min-width: 9em; }
tr.chosen td { background: var(--chosen); }
td.large-error { color: var(--warn); background: var(--warn-ground); font-weight: 600; }
details { margin: 8px 0; }
summary { cursor: pointer; color: var(--accent); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: 13px; color: var(--soft); }
.legend i { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 6px;
  vertical-align: -1px; }
svg { display: block; width: 100%; height: auto; font-size: 12px; }
svg text { fill: var(--ink); }
svg .tick { fill: var(--soft); font-size: 11.5px; font-variant-numeric: tabular-nums; }
svg .tick.strong { fill: var(--ink); }
svg .label { font-size: 12.5px; }
svg .cell { fill: var(--heat-ink); font-size: 11px; font-variant-numeric: tabular-nums; }
.grid { stroke: var(--rule); stroke-width: 1; }
.axis { stroke: var(--soft); stroke-width: 1; }
.curve { fill: none; stroke-width: 2; stroke-linejoin: round; }
.step-end { stroke: var(--ink); stroke-width: 1.5; stroke-dasharray: 4 3; }
rect:hover { opacity: .75; }
.idle { fill: var(--idle); background: var(--idle); }
rect[class^="bar-"] { stroke: none; }
.bar-forward { fill: var(--forward); background: var(--forward); stroke: var(--forward); }
.bar-forward-experts { fill: var(--forward-experts); background: var(--forward-experts); stroke: var(--forward-experts); }
.bar-recompute { fill: var(--recompute); background: var(--recompute); stroke: var(--recompute); }
.bar-backward { fill: var(--backward); background: var(--backward); stroke: var(--backward); }
.bar-backward-experts { fill: var(--backward-experts); background: var(--backward-experts); stroke: var(--backward-experts); }
.bar-update { fill: var(--update); background: var(--update); stroke: var(--update); }
.bar-all-to-all { fill: var(--exchange); background: var(--exchange); stroke: var(--exchange); }
.bar-send-and-receive { fill: var(--transfer); background: var(--transfer); stroke: var(--transfer); }
.bar-all-reduce { fill: var(--reduction); background: var(--reduction); stroke: var(--reduction); }
.memory-weights { fill: var(--forward-experts); background: var(--forward-experts); }
.memory-gradients { fill: var(--forward); background: var(--forward); }
.memory-optimizer { fill: var(--update); background: var(--update); }
.memory-activations { fill: var(--backward); background: var(--backward); }
.memory-buffers { fill: var(--recompute); background: var(--recompute); }
.memory-other0 { fill: var(--transfer); background: var(--transfer); }
.memory-other1 { fill: var(--reduction); background: var(--reduction); }
.memory-other2 { fill: var(--exchange); background: var(--exchange); }
.measured-mark { stroke: var(--ink); stroke-width: 3; background: var(--ink); }
.limit { stroke: var(--warn); stroke-width: 2; stroke-dasharray: 4 3; background: var(--warn); }
.series-a { stroke: var(--forward-experts); background: var(--forward-experts); }
.series-b { stroke: var(--backward-experts); background: var(--backward-experts); }
.series-c { stroke: var(--update); background: var(--update); }
.series-d { stroke: var(--exchange); background: var(--exchange); }
.dot { fill: none; stroke-width: 2; }
)css"
         R"css(
.heat-0, .heat-1, .heat-2, .heat-3 { fill: var(--heat-low); background: var(--heat-low); }
.heat-5, .heat-6, .heat-7, .heat-8 { fill: var(--heat-high); background: var(--heat-high); }
.heat-4 { fill: var(--heat-even); background: var(--heat-even); }
.heat-0, .heat-8 { opacity: .9; } .heat-1, .heat-7 { opacity: .65; }
.heat-2, .heat-6 { opacity: .42; } .heat-3, .heat-5 { opacity: .2; }
svg .cell.on-dark { fill: #ffffff; }
.shade-0 { fill: var(--forward-experts); fill-opacity: 0.06; }
.shade-1 { fill: var(--forward-experts); fill-opacity: 0.12; }
.shade-2 { fill: var(--forward-experts); fill-opacity: 0.18; }
.shade-3 { fill: var(--forward-experts); fill-opacity: 0.24; }
.shade-4 { fill: var(--forward-experts); fill-opacity: 0.30; }
.shade-5 { fill: var(--forward-experts); fill-opacity: 0.36; }
.shade-6 { fill: var(--forward-experts); fill-opacity: 0.42; }
.shade-7 { fill: var(--forward-experts); fill-opacity: 0.48; }
.shade-8 { fill: var(--forward-experts); fill-opacity: 0.54; }
.shade-9 { fill: var(--forward-experts); fill-opacity: 0.60; }
.gain { fill: var(--update); background: var(--update); }
.loss { fill: var(--backward-experts); background: var(--backward-experts); }
.roof { stroke: var(--ink); stroke-width: 2; fill: none; }
.part-0 { fill: var(--forward-experts); background: var(--forward-experts); stroke: var(--forward-experts); }
.part-1 { fill: var(--backward); background: var(--backward); stroke: var(--backward); }
.part-2 { fill: var(--update); background: var(--update); stroke: var(--update); }
.part-3 { fill: var(--exchange); background: var(--exchange); stroke: var(--exchange); }
.part-4 { fill: var(--transfer); background: var(--transfer); stroke: var(--transfer); }
.part-5 { fill: var(--reduction); background: var(--reduction); stroke: var(--reduction); }
.part-6 { fill: var(--recompute); background: var(--recompute); stroke: var(--recompute); }
.part-7 { fill: var(--forward); background: var(--forward); stroke: var(--forward); }
.part-8 { fill: var(--backward-experts); background: var(--backward-experts); stroke: var(--backward-experts); }
.part-9 { fill: var(--soft); background: var(--soft); stroke: var(--soft); }
rect[class^="part-"] { stroke: none; }
.open { fill-opacity: 0; stroke-width: 2; }
.rate-1 { background: rgba(47, 111, 181, .10); }
.rate-2 { background: rgba(47, 111, 181, .20); }
.rate-3 { background: rgba(47, 111, 181, .32); }
.rate-4 { background: rgba(47, 111, 181, .46); }
@media print { body { background: none; } header, section { border: 0; padding: 8px 0; break-inside: avoid; } }
@media (max-width: 700px) { main { padding: 10px; } header, section { padding: 14px; } .scroll svg { min-width: 700px; } }
)css";
}

}  // namespace piper::report
