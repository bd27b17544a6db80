//! Bytes, lines and time: what is too much, and what is just enough.

use abide_programs::{CliConfig, Line};
use expect_test::{Expect, expect};
use futures_util::StreamExt as _;

use crate::{FINAL, SOON, fake, start, told};

async fn check(config: CliConfig, expected: Expect) {
    expected.assert_eq(&told(start(config)).await);
}

/// 4,000,000 bytes of output are the seed's limit: a single line cannot be longer either.
#[tokio::test]
async fn a_line_of_10_mb_is_budget_exceeded_by_default() {
    check(
        fake(&["line", "{}", "long", "10000000", "line", FINAL]),
        expect![[r#"
            {} => status
            · => budget_exceeded: the program wrote more than 4000000 bytes
        "#]],
    )
    .await;
}

#[tokio::test]
async fn a_line_of_10_mb_is_kept_where_it_may_be() {
    let bytes = 11_000_000;
    let config = CliConfig {
        max_output_bytes: bytes,
        max_line_bytes: bytes,
        ..fake(&["long", "10000000", "line", FINAL])
    };
    let lines: Vec<Line> = start(config).collect().await;
    let lengths: Vec<usize> =
        lines.iter().filter_map(|line| line.raw.as_ref()).map(String::len).collect();
    assert_eq!(lengths, [10_000_000, FINAL.len()]);
}

#[tokio::test]
async fn a_line_over_the_line_limit_is_budget_exceeded() {
    let config = CliConfig { max_line_bytes: 100, ..fake(&["line", "{}", "long", "101", "hang"]) };
    check(
        config,
        expect![[r#"
            {} => status
            · => budget_exceeded: the program wrote a line of more than 100 bytes
        "#]],
    )
    .await;
}

#[tokio::test]
async fn bytes_count_with_blank_and_ignored_lines_and_newlines() {
    let steps = ["text", "\n\n\n", "line", "no", "line", "{}"];
    let exact = CliConfig { max_output_bytes: 9, ..fake(&steps) };
    check(
        exact,
        expect![[r#"
            no => 
            {} => status
            · => bad_model_output: the program exited with code 0 and gave no answer
        "#]],
    )
    .await;
    check(
        CliConfig { max_output_bytes: 8, ..fake(&[&steps[..], &["hang"]].concat()) },
        expect![[r#"
            no => 
            · => budget_exceeded: the program wrote more than 8 bytes
        "#]],
    )
    .await;
}

/// What it writes when it is already too much is not told, though it may go on for a while.
#[tokio::test]
async fn after_too_much_nothing_more_is_told_and_there_is_one_end() {
    let steps = ["ignore-term", "long", "99", "line", FINAL, "drip", "{}"];
    check(
        CliConfig { max_output_bytes: 50, grace: SOON, ..fake(&steps) },
        expect![[r#"
            · => budget_exceeded: the program wrote more than 50 bytes
        "#]],
    )
    .await;
}

/// A reader that does not read holds the program back, and not its deadline: the process is ended in
/// time, and what was read of it is still there afterwards.
#[tokio::test]
async fn a_reader_that_is_slow_loses_nothing() {
    let lines: Vec<&str> = std::iter::repeat_n(["line", "{}"], 500).flatten().collect();
    let config = fake(&[&lines[..], &["line", FINAL]].concat());
    let mut running = start(config);
    let mut told = 0;
    while let Some(line) = running.next().await {
        told += usize::from(line.raw.is_some());
        tokio::task::yield_now().await;
    }
    assert_eq!(told, 501);
}
