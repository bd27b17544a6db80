//! The table of transitions, in code and in the database's trigger.

use super::*;

#[test]
fn the_trigger_allows_what_the_code_allows() {
    for from in SessionStatus::ALL {
        for to in SessionStatus::ALL.into_iter().filter(|to| *to != from) {
            let listed = TRANSITIONS.contains(&format!("'{from}>{to}'"));
            assert_eq!(listed, from.may_become(to), "{from} > {to}");
        }
    }
}

#[test]
fn nothing_leaves_a_terminal_status() {
    for from in SessionStatus::ALL.into_iter().filter(|status| status.is_terminal()) {
        assert!(SessionStatus::ALL.into_iter().all(|to| !from.may_become(to)), "{from}");
        assert!(ENDED.contains(from.as_str()));
    }
}
