//! Reads the log in pages, because a result is bounded and the log is not.

use abide_client::{Abide, Code, Error, QueryResult, Seq};

/// Events per page, if they are of ordinary size.
const PAGE_EVENTS: i64 = 1_000;

/// A position in the log.
#[derive(Debug)]
pub(crate) struct LogPages {
    abide: Abide,
    columns: String,
    session: Option<String>,
    after: Seq,
    page: i64,
    /// Whether the last page was the end. Another request could read another history, after a restore.
    is_done: bool,
}

impl LogPages {
    /// Reads these columns (the first is `seq`) of the events after a seq, of one session or of all.
    pub(crate) fn new(abide: &Abide, columns: &str, session: Option<&str>, after: Seq) -> LogPages {
        let columns = columns.to_owned();
        let session = session.map(str::to_owned);
        LogPages {
            abide: abide.clone(),
            columns,
            session,
            after,
            page: PAGE_EVENTS,
            is_done: false,
        }
    }

    /// The seq up to which everything was read.
    pub(crate) fn after(&self) -> Seq {
        self.after
    }

    /// The next page, or `None` at the end.
    ///
    /// # Errors
    /// [`Error`].
    pub(crate) async fn next(&mut self) -> Result<Option<QueryResult>, Error> {
        if self.is_done {
            return Ok(None);
        }
        loop {
            let answer = match self.ask().await {
                // Large events fill a result sooner: retry with a smaller page.
                Err(Error::Refused(why)) if why.code == Code::LimitExceeded && self.page > 1 => {
                    self.page /= 2;
                    continue;
                }
                answer => answer?,
            };
            let last = answer.rows.last().and_then(|row| row.first());
            return Ok(match last {
                Some(abide_client::Value::Integer(seq)) => {
                    self.after = Seq(*seq);
                    if (answer.rows.len() as i64) < self.page {
                        (self.is_done, self.after) = (true, self.after.max(answer.seq));
                    }
                    Some(answer)
                }
                _ => {
                    // No event up to here belongs to the session.
                    self.after = self.after.max(answer.seq);
                    None
                }
            });
        }
    }

    async fn ask(&self) -> Result<QueryResult, Error> {
        let of_session = if self.session.is_some() { "AND session_id = :session" } else { "" };
        let columns = &self.columns;
        let mut query = self.abide.sql(format!(
            "SELECT {columns} FROM events WHERE seq > :after {of_session}
             ORDER BY seq LIMIT :page"
        ));
        query = query.param("after", self.after).param("page", self.page);
        if let Some(session) = &self.session {
            query = query.param("session", session);
        }
        query.rows().await
    }
}
