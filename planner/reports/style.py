"""The style sheet of reports: light and dark, wide and narrow, screen and paper. No script.

Colours are variables, so that both themes are in one place. Text has a contrast of at least 4.5 to
its ground, shapes of at least 3.
"""

from __future__ import annotations

STYLE = """
.planner{--ground:#fff;--ink:#1b1f24;--soft:#57606a;--line:#d5dade;--card:#f4f6f8;--accent:#0b5cad;
--good:#136f3a;--bad:#b3261e;--k0:#6e7781;--k1:#8b949e;--k2:#8250df;--k3:#7d6c4f;--k4:#1a7f4b;
--k5:#2f7fd1;--k6:#d4680a;--k7:#b5488f;color-scheme:light dark;color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
@media (prefers-color-scheme:dark){.planner{--ground:#14171b;--ink:#e6e9ec;--soft:#a6afb8;
--line:#363d45;--card:#1e2329;--accent:#6cb2ff;--good:#56d488;--bad:#ff8a80;--k0:#848d97;
--k1:#6f7883;--k2:#a780f2;--k3:#a8946d;--k4:#35a86a;--k5:#4c9bee;--k6:#f08a32;--k7:#d36bb0}}
body.planner{margin:0;background:var(--ground)}
.planner *{box-sizing:border-box}
.planner main{max-width:64rem;margin:0 auto;padding:1.25rem 1rem 3rem}
.planner h1{font-size:1.5rem;line-height:1.25;margin:0 0 .5rem;overflow-wrap:anywhere}
.planner h2{font-size:1.15rem;margin:2.25rem 0 .5rem;padding-top:.75rem;
border-top:1px solid var(--line)}
.planner p{margin:.5rem 0;max-width:52rem}
.planner h3{font-size:1rem;margin:1.25rem 0 .25rem}
.planner a,.planner summary{color:var(--accent)}
.planner summary{cursor:pointer;padding:.25rem 0}
.planner :focus-visible{outline:3px solid var(--accent);outline-offset:2px}
.planner .lead{font-size:1.1rem}
.planner .soft{color:var(--soft)}
.planner .good{color:var(--good)}
.planner .bad{color:var(--bad)}
.planner code{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.875em;
overflow-wrap:anywhere}
.planner dl.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(8rem,1fr));gap:.5rem;
margin:1rem 0}
.planner dl.cards div{background:var(--card);border-radius:.5rem;padding:.6rem .75rem}
.planner dl.cards dt{color:var(--soft);font-size:.875rem}
.planner dl.cards dd{margin:0;font-size:1.15rem;font-weight:600}
.planner dl.cards small{display:block;font-weight:400;font-size:.8rem;color:var(--soft)}
.planner .scroll{overflow-x:auto;max-width:100%}
.planner table{border-collapse:collapse;width:100%;font-size:.9rem}
.planner th,.planner td{text-align:right;padding:.35rem .5rem;border-bottom:1px solid var(--line);
vertical-align:top;white-space:nowrap}
.planner th:first-child,.planner td:first-child{text-align:left;white-space:normal;min-width:10rem}
.planner thead th{color:var(--soft);font-weight:600;white-space:normal}
.planner .scroll+.scroll{margin-top:1rem}
.planner.cell{background:var(--ground);padding:.75rem 1rem;max-width:64rem}
.planner tbody th{font-weight:400;overflow-wrap:anywhere}
.planner tfoot th,.planner tfoot td{font-weight:600}
.planner table.words th,.planner table.words td{text-align:left;white-space:normal}
.planner ul.why{margin:.25rem 0 .75rem;padding-left:1.25rem;font-size:.9rem}
.planner figure.chart{margin:1rem 0}
.planner figcaption{font-weight:600;margin-bottom:.4rem}
.planner .plot{display:grid;grid-template-columns:max-content minmax(0,1fr);column-gap:.5rem}
.planner .left{position:relative;width:5rem;font-size:.8rem;color:var(--soft)}
.planner .left span,.planner .inside span{position:absolute;white-space:nowrap;
transform:translateY(50%)}
.planner .left span{right:0}
.planner .canvas{position:relative;height:14rem;border-left:1px solid var(--soft);
border-bottom:1px solid var(--soft)}
.planner .canvas svg{display:block;width:100%;height:100%;overflow:visible}
.planner .inside span{right:.25rem;transform:translateY(-.15rem);font-size:.8rem;
background:var(--ground);padding:0 .25rem;border-radius:.2rem}
.planner .below{grid-column:2;position:relative;height:1.4rem;font-size:.8rem;color:var(--soft)}
.planner .below span{position:absolute;white-space:nowrap}
.planner ul.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.25rem 1rem;padding:0;
margin:.4rem 0;font-size:.875rem}
.planner .swatch{display:inline-block;width:.8em;height:.8em;border-radius:.15em;
margin-right:.4em;background:var(--c)}
.planner svg path{fill:none;stroke-width:2}
.planner svg .area{fill:var(--c);stroke:var(--ground);stroke-width:.5}
.planner svg .dot{stroke-linecap:round;stroke-width:8;stroke:var(--c)}
.planner svg .peak{stroke:var(--ink);stroke-width:8}
.planner svg .knee,.planner svg .chosen{stroke-width:13}
.planner svg .outline{stroke:var(--ink);stroke-width:1.25;stroke-dasharray:4 3}
.planner svg .phase{stroke:var(--soft);stroke-width:1;stroke-dasharray:2 4}
.planner svg .budget{stroke:var(--bad);stroke-width:1.5;stroke-dasharray:7 4}
.planner svg .ours{stroke:var(--k5);stroke-width:2.5}
.planner .kind-0{--c:var(--k0)}.planner .kind-1{--c:var(--k1)}.planner .kind-2{--c:var(--k2)}
.planner .kind-3{--c:var(--k3)}.planner .kind-4{--c:var(--k4)}.planner .kind-5{--c:var(--k5)}
.planner .kind-6{--c:var(--k6)}.planner .kind-7{--c:var(--k7)}
.planner .hand-0{--c:var(--k0)}.planner .hand-1{--c:var(--k6)}.planner .hand-2{--c:var(--k4)}
.planner .hand-3{--c:var(--k2)}.planner .hand-4{--c:var(--k7)}
.planner .ours{--c:var(--k5)}.planner .knee{--c:var(--ink)}.planner .chosen{--c:var(--bad)}
.planner .budget{--c:var(--bad);color:var(--bad)}.planner .outline{--c:transparent}
.planner .swatch.outline,.planner .swatch.budget{height:0;width:1.4em;border-radius:0;
background:none;border-top:2px dashed var(--ink);vertical-align:middle}
.planner .swatch.budget{border-color:var(--bad)}
.planner .swatch.knee,.planner .swatch.chosen,.planner .swatch[class*=hand]{border-radius:50%}
@media (max-width:30rem){.planner main{padding:1rem .75rem 2rem}.planner .left{width:4.25rem}
.planner .canvas{height:11rem}.planner th:first-child,.planner td:first-child{min-width:6.5rem}
.planner th,.planner td{padding:.3rem}.planner dl.cards{grid-template-columns:1fr 1fr}}
@media print{body.planner{--ground:#fff;--ink:#000;--soft:#444;--line:#bbb;--card:#fff;
font-size:11pt}
.planner main{max-width:none;padding:0}.planner figure.chart,.planner tr{break-inside:avoid}
.planner h2{break-after:avoid}.planner .scroll{overflow:visible}
.planner table{font-size:9pt}.planner dl.cards div{border:1px solid var(--line)}
.planner *{print-color-adjust:exact;-webkit-print-color-adjust:exact}
.planner details::details-content{content-visibility:visible;height:auto}}
"""
