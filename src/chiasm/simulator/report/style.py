"""How the page looks: light and dark, wide and narrow, nothing from elsewhere."""

CSS = """
:root{--ink:#1b2733;--dim:#5a6875;--page:#fff;--card:#f6f8fa;--line:#dce3e8;--bar:#2a7f9e;--tail:#a9cfdd;--slo:#b3431c;
--bad:#b3431c;--good:#0b7a68}
@media (prefers-color-scheme:dark){:root{--ink:#e6ecf1;--dim:#9fb0bd;--page:#11181e;--card:#18222a;--line:#2c3943;
--bar:#5fb6d3;--tail:#2f5a6b;--slo:#f39a75;--bad:#f39a75;--good:#4fd1b8}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1100px;padding:24px 20px 60px;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
h1{font-size:25px;line-height:1.25;margin:0 0 10px}h2{font-size:18px;margin:34px 0 8px}
p{max-width:78ch;margin:6px 0}.dim{color:var(--dim);font-size:13.5px}
ul{padding-left:20px;margin:8px 0}li{margin:4px 0;max-width:78ch}
.wide{overflow-x:auto;border:1px solid var(--line);border-radius:8px;margin:10px 0}
table{border-collapse:collapse;width:100%;font-size:13.5px;font-variant-numeric:tabular-nums}
th,td{padding:5px 10px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
tr:last-child td{border-bottom:0}th{background:var(--card);font-weight:600}.left{text-align:left}
.bad{color:var(--bad);font-weight:600}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(420px,100%),1fr));gap:14px}
figure{margin:0;padding:10px 12px;background:var(--card);border:1px solid var(--line);border-radius:8px}
figcaption{font-weight:600;font-size:14px;margin-bottom:4px}
svg{width:100%;height:auto;display:block;font-family:inherit}
svg text{font-size:11.5px;fill:var(--ink)}svg .axis{fill:var(--dim);font-size:10.5px}
svg .bar{fill:var(--bar)}svg .tail{fill:var(--tail)}svg .grid{stroke:var(--line)}
svg .slo{stroke:var(--slo);stroke-dasharray:4 3}svg .mark{stroke:var(--ink);stroke-width:1.5}
svg .bad{fill:var(--bad)}svg .track{fill:var(--line)}
"""
