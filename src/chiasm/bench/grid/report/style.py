"""How the page looks: light and dark, wide and narrow, nothing from elsewhere."""

CSS = """
:root{--ink:#1b2733;--dim:#5a6875;--page:#fff;--card:#f7f9fa;--line:#dce3e8;--good:#0b7a68;--bad:#b3431c;--empty:#eef1f3}
@media (prefers-color-scheme:dark){:root{--ink:#e6ecf1;--dim:#9fb0bd;--page:#11181e;--card:#18222a;--line:#2c3943;
--good:#4fd1b8;--bad:#f39a75;--empty:#202b34}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1180px;padding:24px 20px 60px;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
h1{font-size:26px;line-height:1.2;margin:0 0 8px}h2{font-size:19px;margin:36px 0 8px}
h3{font-size:15px;margin:18px 0 6px}
p{max-width:78ch;margin:6px 0}.dim{color:var(--dim);font-size:13.5px}
code,pre{font:13px/1.45 ui-monospace,Menlo,Consolas,monospace}
pre{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 12px;overflow-x:auto;
white-space:pre-wrap;overflow-wrap:anywhere}
.wide{overflow-x:auto;border:1px solid var(--line);border-radius:8px;margin:10px 0}
table{border-collapse:collapse;width:100%;font-size:13.5px;font-variant-numeric:tabular-nums}
th,td{padding:5px 10px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap;vertical-align:top}
tr:last-child td{border-bottom:0}th{background:var(--card);font-weight:600}
.left{text-align:left}.good{color:var(--good);font-weight:600}.bad{color:var(--bad);font-weight:600}
.range{color:var(--dim);font-size:12px}.wrap{white-space:normal;min-width:220px}
.maps{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(330px,100%),1fr));gap:14px}
figure{margin:0;padding:10px 12px;background:var(--card);border:1px solid var(--line);border-radius:8px}
figcaption{font-weight:600;font-size:14px;margin-bottom:4px}
svg.heat{width:100%;height:auto;display:block;font-family:inherit}
svg text{text-anchor:middle;fill:#16202a}svg .end{text-anchor:end}
svg .axis{font-size:11px;fill:var(--dim)}svg .tick{font-size:12.5px;fill:var(--ink)}
svg .value{font-size:13.5px;font-weight:600}svg text.range{font-size:10.5px;fill:#2b3742}
svg .empty{fill:var(--empty)}svg .empty~text{fill:var(--dim);font-weight:400}
.legend{display:flex;flex-wrap:wrap;gap:2px;margin:8px 0 12px}
.swatch{padding:2px 7px;font-size:12px;color:#16202a;border-radius:3px;min-width:48px;text-align:center}
ul{padding-left:20px;margin:8px 0}li{margin:3px 0}
details{margin:12px 0}summary{cursor:pointer;font-weight:600}
:focus-visible{outline:2px solid var(--good);outline-offset:2px}
"""

HATCH = (
    '<svg width="0" height="0" aria-hidden="true" style="position:absolute"><defs><pattern id="hatch" width="8" '
    'height="8" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="8" height="8" fill="#f3c9b8"/>'
    '<line x1="0" y1="0" x2="0" y2="8" stroke="#e9a486" stroke-width="5"/></pattern></defs></svg>'
)
