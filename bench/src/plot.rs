//! Line plots as SVG, with one or several panels that share their axes, readable on light and dark pages.

use std::fmt::Write as _;

/// A plot.
pub(crate) struct Plot {
    pub(crate) title: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) panels: Vec<Panel>,
}

/// An axis, shared by all panels.
pub(crate) struct Axis {
    /// The quantity, with its unit.
    pub(crate) label: String,
    /// Logarithmic, base 10. Zero then has its own position on the left.
    pub(crate) log: bool,
}

/// Lines in a common area.
pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) lines: Vec<Line>,
}

/// A line through points, from left to right.
pub(crate) struct Line {
    /// Lines with the same name and color share a legend entry.
    pub(crate) name: String,
    /// An index into [`COLORS`].
    pub(crate) color: usize,
    pub(crate) dashed: bool,
    pub(crate) points: Vec<(f64, f64)>,
}

/// For light and for dark pages.
const COLORS: [(&str, &str); 6] = [
    ("#0b62d6", "#6cb0ff"),
    ("#bf5b04", "#f2a35e"),
    ("#187a43", "#5fce8e"),
    ("#7c44c4", "#c49bff"),
    ("#c2334d", "#ff8fa3"),
    ("#6b7280", "#9aa4b2"),
];
/// The color of lines that are not measurements; they are drawn without points.
pub(crate) const QUIET: usize = 5;
/// Maximum number of panels in a row.
const ACROSS: usize = 3;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 24.0;
const BOTTOM: f64 = 54.0;
/// Space for the title and one row of the legend.
const TOP: f64 = 66.0;
const LEGEND_ROW: f64 = 18.0;
/// Space between panels: room for a title.
const GAP: (f64, f64) = (36.0, 34.0);
/// Approximate width of a letter.
const LETTER: f64 = 6.7;

impl Plot {
    /// The SVG file.
    pub(crate) fn svg(&self) -> String {
        let across = self.panels.len().clamp(1, ACROSS);
        let down = self.panels.len().div_ceil(across).max(1);
        let size = if across == 1 { (640.0, 320.0) } else { (250.0, 180.0) };
        let inner =
            |size: f64, gap: f64, count: usize| size * count as f64 + gap * (count - 1) as f64;
        let inner_width = inner(size.0, GAP.0, across);
        let inner_height = inner(size.1, GAP.1, down);
        let width = LEFT + inner_width + RIGHT;
        let legend = self.legend(width);
        let panel_title =
            if self.panels.iter().all(|panel| panel.title.is_empty()) { 0.0 } else { 22.0 };
        let top = TOP + legend.1 + panel_title;
        let height = top + inner_height + BOTTOM;
        let values = |pick: fn(&(f64, f64)) -> f64| {
            let lines = self.panels.iter().flat_map(|panel| &panel.lines);
            lines.flat_map(|line| &line.points).map(pick).filter(|value| value.is_finite())
        };
        let x = Scale::covering(self.x.log, values(|point| point.0));
        let y = Scale::covering(self.y.log, values(|point| point.1));
        let mut svg = svg_head(width, height, &self.title);
        svg += &legend.0;
        for (at, panel) in self.panels.iter().enumerate() {
            let column = at % across;
            let row = at / across;
            let area = Area {
                left: LEFT + column as f64 * (size.0 + GAP.0),
                top: top + row as f64 * (size.1 + GAP.1),
                width: size.0,
                height: size.1,
                labels: (at + across >= self.panels.len(), column == 0),
            };
            area.draw(panel, &x, &y, &mut svg);
        }
        write_text(
            &mut svg,
            (LEFT + inner_width / 2.0, height - 14.0),
            "middle",
            "",
            &self.x.label,
        );
        let middle = top + inner_height / 2.0;
        let turned = format!("transform=\"rotate(-90 18 {middle:.1})\"");
        write_text(&mut svg, (18.0, middle), "middle", &turned, &self.y.label);
        svg + "</svg>\n"
    }

    /// Draws each legend entry once. Returns its height beyond one row, too.
    fn legend(&self, width: f64) -> (String, f64) {
        let mut known: Vec<(&str, usize, bool)> = Vec::new();
        for line in self.panels.iter().flat_map(|panel| &panel.lines) {
            let entry = (line.name.as_str(), line.color, line.dashed);
            if !known.contains(&entry) {
                known.push(entry);
            }
        }
        let mut svg = String::new();
        let mut x = LEFT;
        let mut y = 48.0;
        for (name, color, dashed) in known {
            let wide = 30.0 + LETTER * name.chars().count() as f64 + 20.0;
            if x > LEFT && x + wide > width {
                (x, y) = (LEFT, y + LEGEND_ROW);
            }
            let d = format!("M{x:.1} {:.1}h24", y - 4.0);
            let _ = writeln!(svg, "<path class=\"c{color}{}\" d=\"{d}\"/>", dash_class(dashed));
            write_text(&mut svg, (x + 30.0, y), "start", "", name);
            x += wide;
        }
        (svg, y - 48.0)
    }
}

/// The position of a panel.
struct Area {
    left: f64,
    top: f64,
    width: f64,
    height: f64,
    /// Whether the ticks of x and y are labelled in this panel.
    labels: (bool, bool),
}

impl Area {
    fn draw(&self, panel: &Panel, x: &Scale, y: &Scale, svg: &mut String) {
        let right = self.left + self.width;
        let bottom = self.top + self.height;
        let across = |value: f64| self.left + self.width * x.position(value);
        let up = |value: f64| bottom - self.height * y.position(value);
        for (value, label) in &x.ticks {
            let at = across(*value);
            let _ =
                writeln!(svg, "<path class=\"grid\" d=\"M{at:.1} {:.1}V{bottom:.1}\"/>", self.top);
            if self.labels.0 {
                write_text(svg, (at, bottom + 18.0), "middle", TICK, label);
            }
        }
        for (value, label) in &y.ticks {
            let at = up(*value);
            let _ =
                writeln!(svg, "<path class=\"grid\" d=\"M{:.1} {at:.1}H{right:.1}\"/>", self.left);
            if self.labels.1 {
                write_text(svg, (self.left - 8.0, at + 4.0), "end", TICK, label);
            }
        }
        write_text(svg, (self.left, self.top - 8.0), "start", "class=\"panel\"", &panel.title);
        for line in &panel.lines {
            let points: Vec<(f64, f64)> =
                line.points.iter().map(|(x, y)| (across(*x), up(*y))).collect();
            let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
            let color = line.color;
            let dash = dash_class(line.dashed);
            let _ = writeln!(svg, "<path class=\"c{color}{dash}\" d=\"M{}\"/>", path.join("L"));
            for (x, y) in points.into_iter().filter(|_| color != QUIET) {
                let _ = writeln!(
                    svg,
                    "<circle class=\"c{color}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/>"
                );
            }
        }
    }
}

/// Maps values to positions between 0 and 1.
struct Scale {
    log: bool,
    low: f64,
    high: f64,
    ticks: Vec<(f64, String)>,
}

impl Scale {
    fn covering(log: bool, values: impl Iterator<Item = f64> + Clone) -> Scale {
        let high = values.clone().fold(0.0, f64::max);
        if !log {
            let step = round_up_step(high / 5.0);
            let steps = (high / step).ceil().max(1.0);
            let ticks =
                (0..=steps as usize).map(|n| (n as f64 * step, format_tick(n as f64 * step)));
            return Scale { log, low: 0.0, high: steps * step, ticks: ticks.collect() };
        }
        let least = values.clone().filter(|value| *value > 0.0).fold(f64::INFINITY, f64::min);
        let least = if least.is_finite() { least } else { 1.0 };
        let low = 10_f64.powf(least.log10().floor());
        // At least two powers of ten, so that a flat line looks flat.
        let high = 10_f64.powf(high.max(1e-9).log10().ceil()).max(100.0 * low);
        let powers = (high / low).log10().round() as i32;
        let mut ticks: Vec<(f64, String)> = (0..=powers)
            .map(|n| low * 10_f64.powi(n))
            .map(|value| (value, format_tick(value)))
            .collect();
        let mut scale = Scale { log, low, high, ticks: Vec::new() };
        if values.into_iter().any(|value| value <= 0.0) {
            scale.low /= 10.0;
            ticks.insert(0, (0.0, "0".to_owned()));
        }
        scale.ticks = ticks;
        scale
    }

    fn position(&self, value: f64) -> f64 {
        if !self.log {
            return (value - self.low) / (self.high - self.low);
        }
        let value = value.max(self.low);
        (value / self.low).log10() / (self.high / self.low).log10()
    }
}

/// The next value of 1, 2, 5, 10 … that is not smaller.
fn round_up_step(step: f64) -> f64 {
    let power = 10_f64.powf(step.max(1e-9).log10().floor());
    let factors = [1.0, 2.0, 5.0, 10.0];
    power * factors.into_iter().find(|factor| factor * power >= step * 0.999).unwrap_or(10.0)
}

/// The label of a tick: `0.1`, `20`, `150k`, `1M`.
fn format_tick(value: f64) -> String {
    let (value, unit) = match value {
        value if value >= 999_999.0 => (value / 1e6, "M"),
        value if value >= 999.0 => (value / 1e3, "k"),
        value => (value, ""),
    };
    let text = format!("{value:.3}");
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

const TICK: &str = "class=\"quiet\"";

fn dash_class(dashed: bool) -> &'static str {
    if dashed { " dashed" } else { "" }
}

fn write_text(svg: &mut String, at: (f64, f64), anchor: &str, more: &str, content: &str) {
    if !content.is_empty() {
        let (x, y) = at;
        let content = escape(content);
        let _ = writeln!(
            svg,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" {more}>{content}</text>"
        );
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The head of the file, with a background, because an image does not know the color of its page.
fn svg_head(width: f64, height: f64, title: &str) -> String {
    let colors = |pick: fn(&(&'static str, &'static str)) -> &'static str| {
        let rules = COLORS.iter().enumerate();
        rules.map(|(at, pair)| format!(".c{at}{{color:{}}}", pick(pair))).collect::<String>()
    };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         width=\"{width:.0}\" height=\"{height:.0}\" role=\"img\">\n<title>{}</title>\n<style>\n\
         .page{{fill:#ffffff}}text{{font:12px system-ui,-apple-system,'Segoe UI',sans-serif;fill:#1f2328}}\n\
         .title{{font-size:16px;font-weight:600}}.panel{{font-weight:600}}.quiet{{fill:#59636e}}\n\
         path{{fill:none;stroke:currentColor;stroke-width:2}}circle{{fill:currentColor}}\n\
         .grid{{color:#dfe4ea;stroke-width:1}}.dashed{{stroke-dasharray:5 4}}\n{}\n\
         @media (prefers-color-scheme:dark){{.page{{fill:#0d1117}}text{{fill:#e6edf3}}\
         .quiet{{fill:#9aa4b2}}.grid{{color:#2b323b}}\n{}}}\n</style>\n\
         <rect class=\"page\" width=\"100%\" height=\"100%\" rx=\"6\"/>\n",
        escape(title),
        colors(|pair| pair.0),
        colors(|pair| pair.1),
    );
    write_text(&mut svg, (LEFT, 26.0), "start", "class=\"title\"", title);
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_scale_has_a_position_for_zero() {
        let scale = Scale::covering(true, [0.0, 1.0, 1e6].into_iter());
        let labels: Vec<&str> = scale.ticks.iter().map(|(_, label)| label.as_str()).collect();
        assert_eq!(labels, ["0", "1", "10", "100", "1k", "10k", "100k", "1M"]);
        assert_eq!((scale.position(0.0), scale.position(1e6)), (0.0, 1.0));
        assert!((scale.position(1.0) - 1.0 / 7.0).abs() < 1e-9);
    }

    #[test]
    fn a_linear_scale_starts_at_zero_and_includes_the_maximum() {
        let scale = Scale::covering(false, [40_000.0, 187_000.0].into_iter());
        let labels: Vec<&str> = scale.ticks.iter().map(|(_, label)| label.as_str()).collect();
        assert_eq!(labels, ["0", "50k", "100k", "150k", "200k"]);
        assert_eq!((scale.position(0.0), scale.position(200_000.0)), (0.0, 1.0));
    }

    #[test]
    fn text_is_escaped() {
        let line =
            Line { name: "a < b & c".to_owned(), color: 0, dashed: true, points: vec![(1.0, 2.0)] };
        let axis = |label: &str| Axis { label: label.to_owned(), log: true };
        let panels = vec![Panel { title: String::new(), lines: vec![line] }];
        let plot = Plot { title: "<b>".to_owned(), x: axis("x"), y: axis("y"), panels };
        let svg = plot.svg();
        assert!(svg.contains("a &lt; b &amp; c") && svg.contains("<title>&lt;b&gt;</title>"));
        assert!(!svg.contains("<b>") && svg.ends_with("</svg>\n"));
    }
}
