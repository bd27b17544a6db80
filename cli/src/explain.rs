//! `abide explain`: explains how a live query is evaluated, and its cost.

use abide_client::query_plan::{Explanation, OrderTerm, Plan, Shape, TableScan};
use clap::Args;
use serde_json::Value as JsonValue;

use crate::agent::connection_option;
use crate::cells;
use crate::connect::{Access, connect};
use crate::failure::{Failure, add_option_to_commands};
use crate::global_options::Options;
use crate::output::{print_json, print_line};
use crate::pairs;
use crate::printable::Printable;
use crate::statement_hints;
use crate::terminal::Terminal;

/// Arguments of `abide explain`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Explain {
    /// One SELECT, as for `abide watch`
    sql: String,

    /// Values of the parameters of the statement (`:name`), as name=value; optional
    #[arg(value_name = "NAME=VALUE")]
    params: Vec<String>,
}

const EXAMPLES: &str = "\
Shows the rule that evaluates the query, the cost of a commit that concerns it, the state kept in
memory, how changes find the query, and the SQL that computes its deltas. For each table that would
be scanned, the output names the index that avoids the scan.

Examples:
  abide explain 'SELECT * FROM sessions WHERE status = :status'
  abide explain 'SELECT agent, count(*) FROM sessions GROUP BY agent' --json | jq .plan.cost";

/// Shows the explanation.
///
/// # Errors
/// The query cannot be live.
pub(crate) async fn run(options: &Options, args: Explain) -> Result<(), Failure> {
    let params = pairs::parse(&args.params)?;
    let abide = connect(options, Access::Read).await?;
    let mut explain = abide.explain(&*args.sql);
    for (name, value) in params.values {
        explain = explain.param(&name, value);
    }
    let explanation = explain.await;
    abide.close().await;
    let mut explanation =
        explanation.map_err(|error| statement_hints::explain(error.into(), &args.sql))?;
    if let Some(JsonValue::String(hint)) =
        explanation.refused.as_mut().and_then(|refused| refused.get_mut("hint"))
    {
        *hint = add_option_to_commands(hint, &connection_option(options));
    }
    if options.json {
        return print_json(&explanation);
    }
    print_line(format_explanation(Terminal::from_stdout(), &explanation))
}

fn format_explanation(terminal: Terminal, explanation: &Explanation) -> Printable {
    let Explanation { plan, routed_by, scans, snapshot, params, shape, refused } = explanation;
    let Plan { rule, cost, state, statements } = plan;
    let mut lines = Vec::new();
    if let Some(refused) = refused {
        let detail = refused["detail"].as_str().unwrap_or_default();
        let hint = refused["hint"].as_str().unwrap_or_default();
        lines.push(terminal.with("31", format!("cannot be live: {detail}")));
        lines.push(format!("  hint: {hint}\n").into());
    }
    let mut push_field = |name: &str, value: &str| {
        lines.push(terminal.bold(format!("{name:9}")) + "  " + value);
    };
    push_field("rule", rule);
    push_field("cost", cost);
    push_field("state", state);
    push_field("key", &join_or_none(&shape.key));
    let order: Vec<String> =
        shape.order.iter().map(|term| format_order_term(shape, term)).collect();
    push_field("order", &join_or_none(&order));
    if shape.top_n {
        push_field("top-N", "deltas have positions");
    }
    for (at, routed_by) in routed_by.iter().enumerate() {
        push_field(if at == 0 { "routed by" } else { "" }, routed_by);
    }
    for (at, scan) in scans.iter().enumerate() {
        push_field(if at == 0 { "reads all" } else { "" }, &format_scan(scan));
    }
    if snapshot.is_empty() {
        let note = "the statements are not shown to restricted callers";
        lines.push(Printable::from("\n") + terminal.dim(note));
        return Printable::lines(&lines);
    }
    lines.push(Printable::from("\n") + terminal.bold("snapshot") + "\n  " + snapshot);
    for (at, value) in params.iter().enumerate() {
        let parameter = format!("?{}", at + 1);
        if snapshot.contains(&parameter) {
            lines.push(terminal.dim(format!("  {parameter} = {}", format_literal(value))));
        }
    }
    lines.push(Printable::from("\n") + terminal.bold("deltas"));
    lines.extend(statements.iter().map(|statement| format!("  {statement}").into()));
    Printable::lines(&lines)
}

fn join_or_none(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

fn format_order_term(shape: &Shape, term: &OrderTerm) -> String {
    let mut text = term.column.clone();
    if shape.columns.get(term.index).is_some_and(|column| column.hidden) {
        text.push_str(" (not shown)");
    }
    if term.collation != "BINARY" {
        text.push_str(&format!(" COLLATE {}", term.collation));
    }
    let nulls = if term.desc { "last" } else { "first" };
    if term.desc {
        text.push_str(" DESC");
    }
    if term.nulls != nulls {
        text.push_str(&format!(" NULLS {}", term.nulls.to_uppercase()));
    }
    text
}

fn format_scan(scan: &TableScan) -> String {
    let part = match scan.part.as_str() {
        "term" => "in a join from the changed rows",
        "lookup" => "to find the subscriptions that a change concerns",
        _ => "to evaluate the query",
    };
    let spared = match (&scan.declare, &scan.create) {
        (Some(declare), Some(create)) => format!("; avoided by {declare}, that is {create}"),
        _ => String::new(),
    };
    format!("{}, {part}{spared}", scan.table)
}

fn format_literal(value: &JsonValue) -> String {
    match value {
        JsonValue::String(text) => format!("'{}'", cells::one_line(&text.replace('\'', "''"))),
        value => cells::format_value("", value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abide_client::Abide;
    use expect_test::{Expect, expect};

    async fn explain_query(sql: &str) -> Explanation {
        let folder = tempfile::tempdir().expect("there is room");
        let abide = Abide::open(folder.path().join("explain.db")).expect("it opens");
        let explanation = abide.explain(sql).await.expect("it is explained");
        abide.close().await;
        explanation
    }

    async fn check(sql: &str, expected: Expect) {
        let terminal = Terminal { size: None, styled: false };
        expected
            .assert_eq((format_explanation(terminal, &explain_query(sql).await) + "\n").as_str());
    }

    /// The explanation for a caller with a scope.
    #[tokio::test]
    async fn restricted_callers_get_no_statements() {
        let mut explanation = explain_query("SELECT id FROM sessions").await;
        explanation.snapshot.clear();
        let text = format_explanation(Terminal { size: None, styled: false }, &explanation);
        assert!(text.as_str().ends_with("are not shown to restricted callers"), "{text}");
    }

    #[tokio::test]
    async fn a_join_is_explained() {
        check(
            "SELECT s.id, m.content FROM sessions s JOIN agent_state m ON m.session_id = s.id
             WHERE s.agent = 'it''s' ORDER BY m.created_at DESC NULLS FIRST, m.role COLLATE NOCASE",
            expect![[r#"
                rule       join
                cost       the joined rows of the changed rows
                state      none
                key        none
                order      order1 (not shown) DESC NULLS FIRST, order2 (not shown) COLLATE NOCASE
                routed by  sessions: agent
                           agent_state: a shared lookup

                snapshot
                  SELECT "s"."id" AS "id", "m"."content" AS "content", "m"."created_at" AS "order1", "m"."role" AS "order2" FROM main."sessions" AS "s" JOIN main."agent_state" AS "m" WHERE ("m"."session_id" = "s"."id") AND ("s"."agent" = ?1) ORDER BY 3 COLLATE BINARY DESC NULLS FIRST, 4 COLLATE NOCASE ASC NULLS FIRST
                  ?1 = 'it''s'

                deltas
                  SELECT "d_s"._w, "d_s"."id", "m"."content", "m"."created_at", "m"."role" FROM temp."d_sessions" AS "d_s" CROSS JOIN main."agent_state" AS "m" WHERE ("m"."session_id" = "d_s"."id") AND ("d_s"."agent" = ?1)
                  SELECT "d_m"._w, "s"."id", "d_m"."content", "d_m"."created_at", "d_m"."role" FROM temp."d_agent_state" AS "d_m" CROSS JOIN main."sessions" AS "s" WHERE ("d_m"."session_id" = "s"."id") AND ("s"."agent" = ?1)
                  SELECT "d_s"._w * "d_m"._w, "d_s"."id", "d_m"."content", "d_m"."created_at", "d_m"."role" FROM temp."d_sessions" AS "d_s" CROSS JOIN temp."d_agent_state" AS "d_m" WHERE ("d_m"."session_id" = "d_s"."id") AND ("d_s"."agent" = ?1)
            "#]],
        )
        .await;
    }

    #[tokio::test]
    async fn a_top_n_result_is_explained() {
        check(
            "SELECT role, content FROM agent_state WHERE role = :role ORDER BY id DESC LIMIT 3",
            expect![[r#"
                rule       top_n
                cost       the top-N result, if a changed row sorts before its end
                state      the last result
                key        none
                order      order1 (not shown) DESC
                top-N      deltas have positions
                routed by  agent_state: role
                reads all  agent_state, to evaluate the query; avoided by index(role), that is CREATE INDEX agent_state_role ON agent_state (role)

                snapshot
                  SELECT "agent_state"."role" AS "role", "agent_state"."content" AS "content", "agent_state"."id" AS "order1" FROM main."agent_state" AS "agent_state" WHERE ("agent_state"."role" = ?1) ORDER BY 3 COLLATE BINARY DESC NULLS LAST, 1 COLLATE BINARY, 2 COLLATE BINARY, 3 COLLATE BINARY LIMIT 3
                  ?1 = null

                deltas
                  SELECT DISTINCT 1 FROM temp."d_agent_state" AS "d_agent_state" WHERE ("d_agent_state"."role" = ?1)
                  SELECT "agent_state"."role" AS "role", "agent_state"."content" AS "content", "agent_state"."id" AS "order1" FROM main."agent_state" AS "agent_state" WHERE ("agent_state"."role" = ?1) ORDER BY 3 COLLATE BINARY DESC NULLS LAST, 1 COLLATE BINARY, 2 COLLATE BINARY, 3 COLLATE BINARY LIMIT 3
                  SELECT "was_agent_state"."role" AS "role", "was_agent_state"."content" AS "content", "was_agent_state"."id" AS "order1" FROM (SELECT "id", "session_id", "role", "kind", "content", "data", "created_at", "seq", "run_id" FROM main."agent_state" WHERE ("id") NOT IN (SELECT "id" FROM temp."d_agent_state") UNION ALL SELECT "id", "session_id", "role", "kind", "content", "data", "created_at", "seq", "run_id" FROM temp."d_agent_state" WHERE _w < 0) AS "was_agent_state" WHERE ("was_agent_state"."role" = ?1) ORDER BY 3 COLLATE BINARY DESC NULLS LAST, 1 COLLATE BINARY, 2 COLLATE BINARY, 3 COLLATE BINARY LIMIT 3
            "#]],
        )
        .await;
    }

    #[tokio::test]
    async fn which_index_is_lacking() {
        check(
            "SELECT a.id FROM agent_state a JOIN agent_state b ON b.content = a.role",
            expect![[r#"
                cannot be live: every change would scan agent_state, which has no index on content
                  hint: declare `#[table(name = "agent_state", index(content))]`, which is `CREATE INDEX agent_state_content ON agent_state (content)`, or run it once with `abide sql`

                rule       join
                cost       the joined rows of the changed rows
                state      none
                key        none
                order      none
                routed by  agent_state: every change
                           agent_state: every change
                reads all  agent_state, in a join from the changed rows; avoided by index(content), that is CREATE INDEX agent_state_content ON agent_state (content)
                           agent_state, in a join from the changed rows; avoided by index(role), that is CREATE INDEX agent_state_role ON agent_state (role)

                snapshot
                  SELECT "a"."id" AS "id" FROM main."agent_state" AS "a" JOIN main."agent_state" AS "b" WHERE ("b"."content" = "a"."role")

                deltas
                  SELECT "d_a"._w, "d_a"."id" FROM temp."d_agent_state" AS "d_a" CROSS JOIN main."agent_state" AS "b" WHERE ("b"."content" = "d_a"."role")
                  SELECT "d_b"._w, "a"."id" FROM temp."d_agent_state" AS "d_b" CROSS JOIN main."agent_state" AS "a" WHERE ("d_b"."content" = "a"."role")
                  SELECT "d_a"._w * "d_b"._w, "d_a"."id" FROM temp."d_agent_state" AS "d_a" CROSS JOIN temp."d_agent_state" AS "d_b" WHERE ("d_b"."content" = "d_a"."role")
            "#]],
        )
        .await;
    }
}
