//! Regression: a run failed with `disk_full` although the same step would have succeeded after some space was freed.

use abide_client::Code;

use super::ends_run;

#[test]
fn a_refusal_that_may_pass_does_not_end_a_run() {
    let passing: Vec<&str> =
        Code::ALL.iter().filter(|code| !ends_run(**code)).map(|code| code.as_str()).collect();
    let codes = ["rate_limited", "overloaded", "unavailable", "resync_required", "disk_full"];
    assert_eq!(passing, codes);
}
