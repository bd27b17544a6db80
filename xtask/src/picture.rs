//! `cargo xtask picture`: runs the demo, and draws its output as `docs/demo.svg`.
//!
//! The text is the output of a real run. The animation is slower: a demo takes about a second. The picture is
//! animated with CSS only, so that it also moves in an `<img>`, where scripts do not run.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{ExitCode, Stdio};

const PICTURE: &str = "docs/demo.svg";

/// The command, as typed.
const COMMAND: &str = "cargo run --release -- demo";

/// The arguments.
pub(crate) const TAKES: &str = "[--debug]   run the debug build, which compiles faster";

/// The size of a terminal cell, in pixels.
const WIDTH: f64 = 8.4;
const HEIGHT: usize = 20;

/// Seconds until the first line of the demo, and between the others.
const TYPED: f64 = 1.4;
const PAUSE: f64 = 0.7;

/// Seconds until the animation repeats.
const REST: f64 = 8.0;

/// Draws the picture.
pub(crate) fn run(root: &Path, words: &[String]) -> Result<ExitCode, String> {
    let profile: &[&str] = match words {
        [] => &["--release"],
        [word] if word == "--debug" => &[],
        _ => return Err(format!("the arguments are {TAKES}")),
    };
    let mut demo = crate::command::cargo(root);
    demo.args(["run", "--quiet"]).args(profile).args(["--", "demo"]);
    let output = demo.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.map_err(|why| format!("cannot run `{COMMAND}`: {why}"))?;
    if !output.status.success() {
        return Ok(ExitCode::FAILURE);
    }
    let text = String::from_utf8(output.stdout).map_err(|_| "the demo's output is no UTF-8")?;
    fs::write(root.join(PICTURE), draw(&text)).map_err(|why| format!("{PICTURE}: {why}"))?;
    println!("wrote {PICTURE}");
    Ok(ExitCode::SUCCESS)
}

/// Returns the picture of an output.
pub(crate) fn draw(printed: &str) -> String {
    let lines: Vec<&str> = printed.lines().collect();
    let columns = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0).max(80);
    #[expect(clippy::cast_precision_loss, reason = "a terminal is not that wide")]
    let width = (columns + 4) as f64 * WIDTH;
    let count = lines.len() as f64;
    let height = HEIGHT * (lines.len() + 3);
    let cycle = TYPED + PAUSE * count + REST;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" xml:space=\"preserve\" viewBox=\"0 0 {width:.0} {height}\" \
         width=\"{width:.0}\" height=\"{height}\" role=\"img\" \
         aria-label=\"Output of abide demo\">\n<style>\n\
         text {{ font: 14px ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace; \
         fill: #d4d7dd; white-space: pre; }}\n\
         .command {{ fill: #ffffff; font-weight: 600; }} .kill {{ fill: #f2a65a; }} \
         .good {{ fill: #7fd28b; }} .dim {{ fill: #9aa0ab; }}\n"
    );
    for at in 0..lines.len() {
        #[expect(clippy::cast_precision_loss, reason = "so few lines")]
        let from = 100.0 * (TYPED + PAUSE * at as f64) / cycle;
        let _ = writeln!(
            svg,
            "@keyframes l{at} {{ 0%, {from:.2}% {{ opacity: 0; }} {:.2}%, 100% {{ opacity: 1; }} }}\n\
             .l{at} {{ animation: l{at} {cycle:.1}s linear infinite; }}",
            from + 1.0,
        );
    }
    svg += "@media (prefers-reduced-motion: reduce) { text { animation: none !important; } }\n";
    svg += "</style>\n<rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#1d2027\"/>\n";
    push_line(&mut svg, 0, "command", COMMAND);
    for (at, text) in lines.iter().enumerate() {
        push_line(&mut svg, at + 1, &format!("l{at} {}", class(text)), text);
    }
    svg + "</svg>\n"
}

fn push_line(svg: &mut String, row: usize, class: &str, text: &str) {
    let y = HEIGHT * (row + 1) + HEIGHT / 2;
    let _ = writeln!(svg, "<text x=\"16\" y=\"{y}\" class=\"{class}\">{}</text>", escaped(text));
}

fn class(line: &str) -> &'static str {
    let is_good = ["lost   0 of", "twice       0 of", "recording   0 of", "chain verified"];
    if line.contains("SIGKILL") {
        "kill"
    } else if is_good.iter().any(|words| line.contains(words)) {
        "good"
    } else if line.trim_start().starts_with("try:") || line.contains("still pending") {
        "dim"
    } else {
        "plain"
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_picture_shows_each_line_and_runs_nothing() {
        let svg =
            super::draw("abide 0.1.0\n  ✂ SIGKILL <script>\n  log  5 events, chain verified\n");
        assert_eq!(svg.matches("<text ").count(), 4, "the command, and each line");
        assert!(svg.contains("class=\"l1 kill\">  ✂ SIGKILL &lt;script&gt;</text>"), "{svg}");
        assert!(svg.contains("class=\"l2 good\"") && !svg.contains("<script"), "{svg}");
    }
}
