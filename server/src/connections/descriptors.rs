//! File descriptors: determines how many connections the process can have.

use abide_schema::limits::READERS;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::limits;

/// Descriptors reserved for other uses: the database, its WAL and lock once for each SQLite connection, the
/// segments of the journal (some dozen), the listener, standard streams, and programs run by tools. Without a reserve a full server could not accept
/// a connection to refuse it, nor open a file.
const RESERVED: u64 = 112 + 4 * READERS as u64;

/// Raises the soft limit of open files to the hard limit. Returns how many connections fit.
pub(crate) fn raise_connection_limit() -> u32 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let needed = u64::from(limits::CONNECTIONS) * 2 + RESERVED;
    let raised = maximum.map_or(needed, |maximum| maximum.min(needed));
    let mut limit = current;
    if current.is_some_and(|current| current < raised) {
        match setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum }) {
            Ok(()) => limit = Some(raised),
            Err(why) => tracing::warn!(
                name: "file_limit_not_raised",
                %why,
                "the limit of open files could not be raised"
            ),
        }
    }
    let fit = connections_within(limit);
    if fit < limits::CONNECTIONS {
        tracing::warn!(
            name: "file_limit_low",
            connections = fit,
            "the limit of open files is low; raise it with `ulimit -n` or LimitNOFILE="
        );
    }
    fit
}

/// Returns the number of connections within a limit of open files.
fn connections_within(limit: Option<u64>) -> u32 {
    let Some(limit) = limit else { return limits::CONNECTIONS };
    let left = limit.saturating_sub(RESERVED).max(limit / 4).max(1);
    left.min(u64::from(limits::CONNECTIONS)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_a_reserve() {
        assert_eq!(connections_within(None), limits::CONNECTIONS);
        assert_eq!(connections_within(Some(1_000_000)), limits::CONNECTIONS);
        assert_eq!(connections_within(Some(250)), 250 - RESERVED as u32);
        assert_eq!(connections_within(Some(64)), 16);
        assert_eq!(connections_within(Some(0)), 1);
    }
}
