//! Work under a lease: heartbeats while it runs, and its end when the lease is lost.

use std::pin::pin;
use std::time::Duration;

use abide_schema::Code;
use tokio::time::sleep;
use uuid::Uuid;

use crate::Error;

/// The default lease.
pub(super) const LEASE: Duration = Duration::from_secs(30);

/// How work under a lease ended.
pub(super) enum WorkEnd<T> {
    /// It is done.
    Done(T),
    /// It was dropped, because it is no longer wanted.
    Cancelled,
}

/// Runs work, and a heartbeat each third of the lease, which returns whether the work is still wanted. Work that is not,
/// or whose lease is lost, is dropped.
///
/// # Errors
/// The error of a heartbeat that the server refused: another worker has the work now.
pub(super) async fn run<T, B>(
    work: impl Future<Output = T>,
    lease: Duration,
    heartbeat: impl Fn() -> B,
) -> Result<WorkEnd<T>, Error>
where
    B: Future<Output = Result<bool, Error>>,
{
    let stopped = async {
        loop {
            // tidy: the interval of heartbeats
            sleep(lease / 3).await;
            match heartbeat().await {
                Ok(true) => {}
                Ok(false) => return Ok(WorkEnd::Cancelled),
                // The lease may still hold when the server answers again.
                Err(error) if is_passing(&error) => {}
                Err(error) => return Err(error),
            }
        }
    };
    let mut work = pin!(work);
    let mut stopped = pin!(stopped);
    tokio::select! {
        biased;
        done = &mut work => Ok(WorkEnd::Done(done)),
        stopped = &mut stopped => stopped,
    }
}

/// Whether the server gave no answer, or none that is final: it restarts, is not reachable, or is overloaded.
pub(super) fn is_passing(error: &Error) -> bool {
    match error {
        Error::TimedOut { .. }
        | Error::Unreachable { .. }
        | Error::NotAbide { .. }
        | Error::Tls { .. } => true,
        error => error.code().is_some_and(Code::is_temporary),
    }
}

/// Milliseconds, for arguments.
pub(super) fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// A name for one claim: of this process, and unique.
pub(super) fn worker_name() -> String {
    let unique = Uuid::new_v4().simple().to_string();
    format!("{}:{}", std::process::id(), &unique[..8])
}
