//! The transition table, in code and in the database's trigger.

use super::*;

#[test]
fn the_trigger_allows_the_same_transitions_as_the_code() {
    for from in SessionStatus::ALL {
        for to in SessionStatus::ALL.into_iter().filter(|to| *to != from) {
            let listed = TRANSITIONS.contains(&format!("'{from}>{to}'"));
            assert_eq!(listed, from.may_become(to), "{from} > {to}");
        }
    }
}

#[test]
fn terminal_statuses_are_final() {
    for from in SessionStatus::ALL.into_iter().filter(|status| status.is_terminal()) {
        assert!(SessionStatus::ALL.into_iter().all(|to| !from.may_become(to)), "{from}");
        assert!(ENDED.contains(from.as_str()));
    }
}
