//! Lease renewal. The leases of all runs of a runtime are renewed together, many in a batch: ten thousand runs take
//! twenty transactions instead of ten thousand.

use std::time::Duration;

use abide_client::{Abide, Call, Error};

use crate::run::lease::RunLease;

/// Runs in one batch: half of the permitted batch size, because a batch blocks all other writes.
const TOGETHER: usize = 500;

/// Renews the leases of runs. A refused renewal is ignored here: the driver of that run gets the same refusal at
/// its next step.
///
/// A batch is atomic. If the batch is refused, its two halves are tried separately, so that one ended run does not
/// cost other runs their leases.
pub(crate) async fn prolong(
    abide: &Abide,
    run_leases: &[RunLease],
    lease: Duration,
) -> Result<(), Error> {
    let mut waiting: Vec<&[RunLease]> = run_leases.chunks(TOGETHER).rev().collect();
    while let Some(together) = waiting.pop() {
        let calls = together.iter().map(|run_lease| Call::of(run_lease.heartbeat(lease)));
        match abide.batch(calls).await {
            Ok(_) => {}
            Err(Error::Refused(_)) => {
                if together.len() > 1 {
                    let (first, second) = together.split_at(together.len() / 2);
                    waiting.extend([second, first]);
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
