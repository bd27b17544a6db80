//! `/metrics` of a server with agents, against the page, the alert rules and the dashboard that name its metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::Value as JsonValue;

use crate::agent::request_with;
use crate::program::{Process, abide, run};

/// A file of the repository.
pub(crate) fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    fs::read_to_string(root.join(path)).unwrap()
}

/// What a metric is: its kind and its meaning.
type Description = (String, String);

/// The rows of the page: name, kind, labels, meaning.
fn rows_of_page() -> BTreeMap<String, (Description, BTreeSet<String>)> {
    let page = read("docs/metrics.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `abide_"));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_end_matches(" |").splitn(4, " | ").collect();
        let [name, kind, labels, meaning] = cells[..] else { panic!("{row}") };
        let labels = labels.split(", ").map(|label| label.trim_matches([' ', '`']).to_owned());
        let labels = labels.filter(|label| !label.is_empty()).collect();
        let name = format!("abide_{}", name.trim_end_matches('`'));
        (name, ((kind.to_owned(), meaning.to_owned()), labels))
    })
    .collect()
}

/// The metrics of a server that has done something, and has agents.
fn metrics() -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut command = abide();
    command.current_dir(folder.path());
    command.args(["serve", "--json", "--listen", "127.0.0.1:0", "--agents", ".", "--db", "a.db"]);
    let server = Process::spawn(&mut command);
    let greeting: JsonValue = serde_json::from_str(&server.line()).unwrap();
    let address = greeting["listening"].as_str().unwrap();
    let url = format!("http://{address}");
    for words in [
        &["create_session", "agent=support", "id=s1"][..],
        &["register_tool", "name=refund", "effect=at_most_once", r#"approval={"prompt": "?"}"#],
        &["request_tool_call", "call_id=c1", "session_id=s1", "tool_name=refund", "arguments={}"],
        &["set_timer", "in_ms=3600000", "id=t1"],
    ] {
        run(["call", "--url", &url].iter().chain(words)).good();
    }
    run(["sql", "SELECT 1", "--url", &url]).good();
    let (status, text) = request_with(address, "GET", "/metrics", "", "");
    assert_eq!(status, 200, "{text}");
    text
}

/// A sample: its name, its labels, and its value.
type Sample<'a> = (&'a str, Vec<(&'a str, &'a str)>, f64);

fn samples(text: &str) -> Vec<Sample<'_>> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = name.split_once('{').unwrap_or((name, ""));
            let labels = labels.trim_end_matches('}').split(',').filter(|it| !it.is_empty());
            let labels = labels.map(|label| label.split_once('=').unwrap()).collect();
            (name, labels, value.parse().unwrap())
        })
        .collect()
}

/// The page lists each metric of `/metrics` with its kind, labels and meaning, and no other.
#[test]
fn the_page_lists_the_metrics_of_a_server() {
    let text = metrics();
    let listed = rows_of_page();
    let heads = |prefix: &'static str| -> BTreeMap<String, String> {
        let lines = text.lines().filter_map(move |line| line.strip_prefix(prefix));
        lines.map(|line| line.split_once(' ').unwrap()).map(own).collect()
    };
    let (helps, kinds) = (heads("# HELP "), heads("# TYPE "));
    for (name, kind) in &kinds {
        let meaning = &helps[name];
        let row = listed.get(name).map(|row| &row.0);
        let written = (kind.clone(), meaning.clone());
        assert_eq!(
            row,
            Some(&written),
            "a row of docs/metrics.md: | `{name}` | {kind} | … | {meaning} |"
        );
    }
    let unknown: Vec<&String> = listed.keys().filter(|name| !kinds.contains_key(*name)).collect();
    assert!(unknown.is_empty(), "no metrics: {unknown:?}");
    for (name, labels, _) in samples(&text) {
        let base = base(name, &kinds);
        for (label, _) in labels.iter().filter(|(label, _)| *label != "le") {
            assert!(listed[base].1.contains(*label), "{name} has the label {label}");
        }
    }
    let find = |name: &str, label: (&str, &str)| {
        let all = samples(&text);
        let found = all.iter().find(|it| it.0 == name && it.1.contains(&label));
        found.map(|it| it.2)
    };
    assert_eq!(find("abide_waiting_rows", ("kind", "\"approvals\"")), Some(1.0));
    assert_eq!(find("abide_waiting_rows", ("kind", "\"timers\"")), Some(0.0), "none is due");
    let kinds_of_rows = samples(&text).iter().filter(|it| it.0 == "abide_waiting_rows").count();
    assert_eq!(kinds_of_rows, 7);
}

/// A pair of its own texts.
fn own((left, right): (&str, &str)) -> (String, String) {
    (left.to_owned(), right.to_owned())
}

/// The metric of a sample: without the suffix of a histogram.
fn base<'a>(name: &'a str, kinds: &BTreeMap<String, String>) -> &'a str {
    let bases = ["_bucket", "_sum", "_count"].into_iter().filter_map(|it| name.strip_suffix(it));
    let mut histograms =
        bases.filter(|base| kinds.get(*base).is_some_and(|kind| kind == "histogram"));
    histograms.next().unwrap_or(name)
}

/// Prometheus needs buckets that grow, end with all observations, and agree with the count.
#[test]
fn histograms_are_consistent() {
    let text = metrics();
    let all = samples(&text);
    let mut checked = 0;
    for line in text.lines() {
        let Some(name) = line.strip_prefix("# TYPE ").and_then(|it| it.strip_suffix(" histogram"))
        else {
            continue;
        };
        let of = |suffix: &str| {
            let name = format!("{name}{suffix}");
            all.iter().filter(move |it| it.0 == name).collect::<Vec<_>>()
        };
        let buckets = of("_bucket");
        let (counts, sums) = (of("_count"), of("_sum"));
        if name.starts_with("abide_agent_") || name == "abide_model_call_seconds" {
            assert!(buckets.is_empty(), "no agent has run");
            continue;
        }
        assert_eq!((counts.len(), sums.len()), (1, 1), "{name}");
        assert!(buckets.is_sorted_by(|left, right| left.2 <= right.2), "{name}: {buckets:?}");
        let bounds: Vec<f64> = buckets
            .iter()
            .map(|it| it.1[0].1.trim_matches('"').replace("+Inf", "inf").parse().unwrap())
            .collect();
        assert!(bounds.is_sorted() && bounds.last() == Some(&f64::INFINITY), "{name}: {bounds:?}");
        assert_eq!(buckets.last().unwrap().2, counts[0].2, "{name}");
        checked += 1;
    }
    assert_eq!(checked, 4, "calls, syncs, queries, deltas");
    let count = |name: &str| all.iter().find(|it| it.0 == name).unwrap().2;
    assert!(count("abide_call_seconds_count") >= 4.0 && count("abide_sync_seconds_sum") > 0.0);
}

/// Every metric that an alert or a panel names exists.
#[test]
fn alerts_and_the_dashboard_name_metrics_that_exist() {
    let listed = rows_of_page();
    let kinds: BTreeMap<String, String> =
        listed.iter().map(|(name, row)| (name.clone(), row.0.0.clone())).collect();
    for path in ["deploy/alerts.yaml", "deploy/grafana.json"] {
        let text = read(path);
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let names: BTreeSet<&str> = words.filter(|word| word.starts_with("abide_")).collect();
        assert!(names.len() > 10, "{path}: {names:?}");
        for name in names {
            let metric = base(name, &kinds);
            let kind = kinds.get(metric).unwrap_or_else(|| panic!("{path}: {name} is no metric"));
            assert!(kind != "histogram" || metric != name, "{path}: {name} has no samples");
        }
    }
    let dashboard: JsonValue = serde_json::from_str(&read("deploy/grafana.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<i64> = panels.iter().map(|panel| panel["id"].as_i64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "each panel has an id of its own");
}
