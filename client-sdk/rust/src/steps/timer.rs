//! The step `sleep_until`: a durable timer.

use std::time::{SystemTime, UNIX_EPOCH};

use abide_reducers::arguments::SetTimer;
use abide_reducers::{TimerStatus, ToolCallStatus};
use abide_schema::{Code, Micros};
use serde::Deserialize;

use super::DurableSession;
use super::stored_row::{LiveRow, find_stored_id};
use crate::Error;

#[derive(Deserialize)]
struct Timer {
    status: TimerStatus,
}

impl DurableSession {
    /// Waits for a time, also across restarts. The first step with this key decides the time.
    ///
    /// # Errors
    /// [`Error::ToolFailed`] if the session ended meanwhile; [`Error::Closed`] if the client was closed.
    pub async fn sleep_until(&self, when: SystemTime, key: &str) -> Result<(), Error> {
        let since = when.duration_since(UNIX_EPOCH).unwrap_or_default();
        let due_at = Micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX));
        let id = self.set_timer(self.call_id(key), due_at).await?;
        let timer =
            LiveRow::subscribe(&self.abide, "SELECT status FROM timers WHERE id = :id", &id)
                .await?;
        let timer = timer.wait_until(|timer: &Timer| timer.status != TimerStatus::Pending).await?;
        if timer.status == TimerStatus::Cancelled {
            let error = Some("the timer was cancelled".to_owned());
            let status = ToolCallStatus::Cancelled;
            return Err(Error::ToolFailed { call_id: id, status, error });
        }
        Ok(())
    }

    /// Sets the timer, unless it is set already; returns its stored id.
    async fn set_timer(&self, id: String, due_at: Micros) -> Result<String, Error> {
        let session_id = Some(self.id.clone());
        let timer =
            SetTimer { id: Some(id.clone()), session_id, due_at: Some(due_at), ..SetTimer::new() };
        match self.abide.call(timer).await {
            Ok(timer) => Ok(timer.into_inner().id),
            Err(error) if error.code() == Some(Code::Conflict) => {
                let sql = "SELECT id FROM timers WHERE id = :id";
                find_stored_id(&self.abide, sql, &id).await?.ok_or(error)
            }
            Err(error) => Err(error),
        }
    }
}
