//! Limits of bytes, lines and time, from both sides.

use abide_programs::{CliConfig, Line};
use expect_test::{Expect, expect};
use futures_util::StreamExt as _;

use crate::{FINAL, SOON, fake, rendered, start};

async fn check(config: CliConfig, expected: Expect) {
    expected.assert_eq(&rendered(start(config)).await);
}

/// The default limit is 4,000,000 bytes of output; it also limits a single line.
#[tokio::test]
async fn a_line_of_10_mb_is_budget_exceeded_by_default() {
    check(
        fake(&["line", "{}", "long", "10000000", "line", FINAL]),
        expect![[r#"
            {} => status
            · => budget_exceeded: the program wrote more than 4000000 bytes within a minute (max_output_bytes)
        "#]],
    )
    .await;
}

#[tokio::test]
async fn a_line_of_10_mb_is_kept_with_a_higher_limit() {
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
            · => budget_exceeded: the program wrote a line of more than 100 bytes (max_line_bytes)
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
            · => budget_exceeded: the program wrote more than 8 bytes within a minute (max_output_bytes)
        "#]],
    )
    .await;
}

/// Output after an overflow is dropped, even if the program keeps writing.
#[tokio::test]
async fn after_an_overflow_there_is_only_the_terminal_event() {
    let steps = ["ignore-term", "long", "99", "line", FINAL, "drip", "{}"];
    check(
        CliConfig { max_output_bytes: 50, grace: SOON, ..fake(&steps) },
        expect![[r#"
            · => budget_exceeded: the program wrote more than 50 bytes within a minute (max_output_bytes)
        "#]],
    )
    .await;
}

/// A reader that does not read delays the program, but not its deadline. The process is stopped in time, and its
/// output up to then is still available.
#[tokio::test]
async fn a_slow_reader_loses_no_output() {
    let lines: Vec<&str> = std::iter::repeat_n(["line", "{}"], 500).flatten().collect();
    let config = fake(&[&lines[..], &["line", FINAL]].concat());
    let mut running = start(config);
    let mut output = 0;
    while let Some(line) = running.next().await {
        output += usize::from(line.raw.is_some());
        tokio::task::yield_now().await;
    }
    assert_eq!(output, 501);
}
