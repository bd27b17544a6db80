//! A server at the other end of one WebSocket (being written).

use abide_schema::Seq;

use crate::Error;
use crate::backend::{Ask, Attempt, Query, Source};

#[derive(Debug)]
pub(crate) struct Remote {}

impl Remote {
    pub(crate) async fn connect(url: &str, _token: Option<&str>) -> Result<Remote, Error> {
        Err(Error::Unreachable { url: url.to_owned(), why: "not built yet".to_owned() })
    }

    pub(crate) fn reconnects(&self) -> u64 {
        0
    }

    pub(crate) async fn close(&self) {}

    pub(crate) async fn ask(&self, _ask: &Ask) -> Attempt {
        Attempt { outcome: Err(Error::Closed), uncertain: false }
    }

    pub(crate) fn subscribe(
        &self,
        _query: Query,
        _from: Option<Seq>,
    ) -> Result<Box<dyn Source>, Error> {
        Err(Error::Closed)
    }
}
