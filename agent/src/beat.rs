//! Signs of life: the leases of all runs that a runtime drives are prolonged together, many in a batch. Ten
//! thousand runs take twenty transactions, and not ten thousand.

use std::time::Duration;

use abide_client::{Abide, Call, Error, Hold};

/// Runs in one batch: half of what one may have, for nobody else can write meanwhile.
const TOGETHER: usize = 500;

/// Prolongs the leases of runs. What is refused is passed over: the next step of that run's driver is refused too, and
/// it learns why.
///
/// A batch is all or nothing. Where one run of it is refused, its halves are tried, so that no run loses its lease
/// to another's end.
pub(crate) async fn prolong(abide: &Abide, holds: &[Hold], lease: Duration) -> Result<(), Error> {
    let mut waiting: Vec<&[Hold]> = holds.chunks(TOGETHER).rev().collect();
    while let Some(together) = waiting.pop() {
        let calls = together.iter().map(|hold| Call::from(abide.heartbeat_run(hold, lease)));
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
