//! How the rows of a query leave the reader.

use std::sync::Arc;

use abide_schema::{Code, Refusal, SEE_LOG, Seq};
use abide_store::{Query, QueryLimits};
use tokio::runtime;
use tokio::sync::watch;

use crate::commit::durable;
use crate::health::Health;
use crate::results::RowSink;

/// When the caller sees the rows.
#[derive(Clone, Debug)]
pub(crate) enum Delivery {
    /// After the whole result. The caller of the reader waits until the state that was read is durable.
    Whole,
    /// As they are read. The reader waits until the state is durable before it passes on the first row.
    RowByRow { durable: watch::Receiver<Seq>, health: Arc<Health> },
}

impl Delivery {
    /// Waits until the caller may see rows of a state.
    fn wait(&self, seq: Seq) -> Result<(), Refusal> {
        let Delivery::RowByRow { durable, health } = self else { return Ok(()) };
        if *durable.borrow() >= seq {
            return Ok(());
        }
        let waiting = runtime::Builder::new_current_thread().build().map_err(|error| {
            tracing::error!(
                name: "reader_failed",
                %error,
                "a reader cannot wait for a durable state"
            );
            Refusal::new(Code::Internal, "the query could not wait for the disk").hint(SEE_LOG)
        })?;
        waiting.block_on(durable::reached(durable, seq, health))
    }
}

/// Where the rows go.
pub(crate) struct Output<'a> {
    pub(crate) sink: &'a mut dyn RowSink,
    pub(crate) delivery: &'a Delivery,
}

impl Output<'_> {
    /// Returns the limits of a query whose whole result has these. A result that is passed on row by row has any number of
    /// rows. Its time and steps start again with each row, so that a slow consumer does not use them up.
    pub(crate) fn limits(&self, whole: QueryLimits) -> QueryLimits {
        match self.delivery {
            Delivery::Whole => whole,
            Delivery::RowByRow { .. } => {
                QueryLimits { rows: usize::MAX, bytes: usize::MAX, of_each_row: true, ..whole }
            }
        }
    }

    /// Runs a query and passes on its result.
    pub(crate) fn write(
        &mut self,
        seq: Seq,
        columns: Vec<String>,
        query: Query<'_>,
    ) -> Result<(), Refusal> {
        self.delivery.wait(seq)?;
        self.sink.begin(seq, columns);
        query.for_each_row(&mut |row| self.sink.row(row))
    }
}
