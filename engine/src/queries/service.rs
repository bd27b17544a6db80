//! Plans queries and runs them on the readers. A result is returned once the state that it was read from is durable.

use std::sync::Arc;
use std::time::Instant;

use abide_live::{Binding, Planner, QueryPrincipal};
use abide_schema::wire::Explanation;
use abide_schema::{Caller, Refusal, Seq, Value, limits};
use abide_store::{Layout, Reader};
use serde_json::{Map, Value as JsonValue};
use tokio::sync::watch;

use crate::access::policies::Policies;
use crate::access::tenants::Tenants;
use crate::commit::durable;
use crate::commit::fair_queue::Turn;
use crate::fault_points;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::queries::explain::{self, PlanningDb};
use crate::queries::failure::QueryFailure;
use crate::queries::output::{Delivery, Output};
use crate::queries::query::bare_name;
use crate::queries::readers::Readers;
use crate::queries::tables::LiveTables;
use crate::queries::{planned, query};
use crate::results::{CollectedResult, QueryResult, RowSink};

/// Plans and runs queries.
#[derive(Debug)]
pub(crate) struct QueryService {
    pub(crate) readers: Readers,
    /// A separate reader for credentials.
    pub(crate) lookups: Readers,
    pub(crate) planner: Arc<Planner>,
    pub(crate) planning_db: Arc<PlanningDb>,
    pub(crate) policies: Arc<Policies>,
    pub(crate) tables: Arc<LiveTables>,
    pub(crate) layout: Layout,
    pub(crate) durable: watch::Receiver<Seq>,
    pub(crate) health: Arc<Health>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) tenants: Tenants,
}

/// A read-only statement of a caller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueryRequest<'a> {
    pub(crate) caller: &'a Caller,
    pub(crate) sql: &'a str,
    pub(crate) params: &'a Map<String, JsonValue>,
    pub(crate) as_of: Option<Seq>,
}

impl QueryService {
    /// One read-only statement of a caller.
    pub(crate) async fn query<S: RowSink>(
        &self,
        request: QueryRequest<'_>,
        sink: S,
        delivery: Delivery,
    ) -> Result<S, Refusal> {
        let begun = Instant::now();
        let answered = self.read_durable(request, sink, delivery).await;
        self.metrics.query_seconds.add(begun.elapsed());
        if answered.is_ok() {
            self.metrics.queries_total.add(1);
        }
        answered
    }

    /// Runs a statement, and waits until the state that it read is durable.
    async fn read_durable<S: RowSink>(
        &self,
        request: QueryRequest<'_>,
        sink: S,
        delivery: Delivery,
    ) -> Result<S, Refusal> {
        let (seq, sink) = match self.policies.principal(request.caller) {
            Some(principal) => self.query_restricted(request, principal, sink, delivery).await?,
            None => self.query_unrestricted(request, sink, delivery).await?,
        };
        self.wait_durable(fault_points::durable_for_query(seq)).await?;
        Ok(sink)
    }

    /// The delivery of a result that the caller sees as it is read.
    pub(crate) fn row_by_row(&self) -> Delivery {
        let durable = self.durable.clone();
        let health = Arc::clone(&self.health);
        Delivery::RowByRow { durable, health }
    }

    /// A query of an unrestricted caller.
    async fn query_unrestricted<S: RowSink>(
        &self,
        request: QueryRequest<'_>,
        mut sink: S,
        delivery: Delivery,
    ) -> Result<(Seq, S), Refusal> {
        let QueryRequest { caller, sql, params, as_of } = request;
        let given = with_bare_names(params);
        let (sql, params) = query::prepare(sql, params)?;
        let layout = self.layout.clone();
        let planner = Arc::clone(&self.planner);
        let tables = Arc::clone(&self.tables);
        let bytes: usize = params.values().map(Value::size).sum();
        let weight = 1 + bytes / limits::READER_QUEUE_UNIT_BYTES;
        let metrics = Arc::clone(&self.metrics);
        // Planned on the reader: a long text may take some milliseconds.
        self.readers
            .run(&Turn::from_caller(caller, &self.tenants), weight, move |reader| {
                let output = &mut Output { sink: &mut sink, delivery: &delivery };
                let read = match planner.bind_chosen(&sql, &given) {
                    Some(binding) => run_chosen(reader, &tables, &binding, as_of, output),
                    None => query::run(reader, &layout, &sql, &params, as_of, output),
                };
                metrics.query_steps_total.add(reader.take_steps());
                Ok((read?, sink))
            })
            .await?
    }

    /// A statement over the credential tables, on a dedicated reader.
    pub(crate) async fn look_up(
        &self,
        sql: &str,
        params: &Map<String, JsonValue>,
    ) -> Result<QueryResult, Refusal> {
        self.read_uncounted(&self.lookups, sql, params).await
    }

    /// A statement of the engine itself, on the readers of queries: it delays no authentication, and takes one turn among the
    /// callers.
    pub(crate) async fn measure(
        &self,
        sql: &str,
        params: &Map<String, JsonValue>,
    ) -> Result<QueryResult, Refusal> {
        self.read_uncounted(&self.readers, sql, params).await
    }

    async fn read_uncounted(
        &self,
        readers: &Readers,
        sql: &str,
        params: &Map<String, JsonValue>,
    ) -> Result<QueryResult, Refusal> {
        let (sql, params) = query::prepare(sql, params)?;
        let layout = self.layout.clone();
        let answer = readers
            .run(&Turn::from_tenant(Caller::SYSTEM), 1, move |reader| {
                let mut sink = CollectedResult::default();
                let output = &mut Output { sink: &mut sink, delivery: &Delivery::Whole };
                query::run(reader, &layout, &sql, &params, None, output).map(|_| sink.into_result())
            })
            .await??;
        self.wait_durable(answer.seq).await?;
        Ok(answer)
    }

    /// How a query would be maintained live, and at what cost.
    pub(crate) async fn explain(
        &self,
        caller: &Caller,
        sql: &str,
        params: &Map<String, JsonValue>,
    ) -> Result<Explanation, Refusal> {
        let principal = self.policies.principal(caller);
        let planner = Arc::clone(&self.planner);
        let planning_db = Arc::clone(&self.planning_db);
        let layout = self.layout.clone();
        let statement = sql;
        let given = params;
        let sql = sql.to_owned();
        let params = params.clone();
        let explained = self.read_for(caller, move |_| {
            let binding = planner.bind_some(&sql, &params, principal.as_ref())?;
            match principal {
                Some(principal) => planning_db.explain_restricted(&binding, &principal),
                None => planning_db.explain(&binding),
            }
        });
        explained.await.map_err(|refusal| {
            let refusal = query::with_nearest_table(refusal, &layout);
            query::with_unused_parameter(refusal, statement, given.keys())
        })
    }

    /// A query of a restricted caller: planned like a live query, so that it can access only
    /// what the caller may see.
    async fn query_restricted<S: RowSink>(
        &self,
        request: QueryRequest<'_>,
        mut principal: QueryPrincipal,
        mut sink: S,
        delivery: Delivery,
    ) -> Result<(Seq, S), Refusal> {
        let QueryRequest { caller, sql, params, as_of } = request;
        query::prepare(sql, params)?;
        let given = params;
        let statement: Arc<str> = sql.into();
        let params = Arc::new(with_bare_names(given));
        loop {
            let planner = Arc::clone(&self.planner);
            let tables = Arc::clone(&self.tables);
            let statement = Arc::clone(&statement);
            let params = Arc::clone(&params);
            let asker = principal.clone();
            let delivery = delivery.clone();
            let metrics = Arc::clone(&self.metrics);
            // Planned on the reader: a long text may take some milliseconds.
            let read = move |reader: &mut Reader| {
                let output = &mut Output { sink: &mut sink, delivery: &delivery };
                let read = planner
                    .bind_once(&statement, &params, &asker)
                    .map_err(QueryFailure::from)
                    .and_then(|binding| {
                        planned::run_once(reader, &tables, &binding, as_of, output)
                    });
                metrics.query_steps_total.add(reader.take_steps());
                (read, sink)
            };
            let (read, returned) =
                self.readers.run(&Turn::from_caller(caller, &self.tenants), 1, read).await?;
            sink = returned;
            match read {
                Ok(seq) => return Ok((seq, sink)),
                Err(QueryFailure::Refused(refusal)) => {
                    return Err(query::with_unused_parameter(refusal, sql, given.keys()));
                }
                // The sink has nothing: this is known before the first row.
                Err(QueryFailure::Outdated) => {
                    let now = self.policies.principal(caller);
                    principal =
                        now.expect("whether a caller is restricted does not depend on policies");
                }
            }
        }
    }

    /// Runs something on a reader, in the caller's turn.
    pub(crate) async fn read_for<T, E>(
        &self,
        caller: &Caller,
        work: impl FnOnce(&mut Reader) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<Refusal> + Send + 'static,
    {
        self.read(&Turn::from_caller(caller, &self.tenants), work).await
    }

    /// Runs something on a reader, in this turn.
    pub(crate) async fn read<T, E>(
        &self,
        turn: &Turn,
        work: impl FnOnce(&mut Reader) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<Refusal> + Send + 'static,
    {
        self.readers.run(turn, 1, work).await?
    }

    /// Plans a live query for a caller.
    pub(crate) async fn plan(
        &self,
        caller: &Caller,
        sql: &str,
        params: &Map<String, JsonValue>,
    ) -> Result<Binding, Refusal> {
        let principal = self.policies.principal(caller);
        if let Some(known) = self.planner.bind_known(sql, params, principal.as_ref()) {
            let binding = known
                .map_err(|refusal| query::with_unused_parameter(refusal, sql, params.keys()))?;
            if let Some(verdict) = binding.verdict() {
                let verdict = verdict.clone();
                return match verdict {
                    Ok(()) => Ok(binding),
                    Err(refusal) => Err(verdict_for(refusal, &binding, principal.as_ref())),
                };
            }
        }
        let planner = Arc::clone(&self.planner);
        let planning_db = Arc::clone(&self.planning_db);
        let statement = sql;
        let given = params;
        let sql = sql.to_owned();
        let params = params.clone();
        let layout = self.layout.clone();
        // Parsing a long text may take some milliseconds, and SQLite's planning more.
        let planned = self.read_for(caller, move |_| {
            let binding = match &principal {
                Some(principal) => planner.bind_within(&sql, &params, principal)?,
                None => planner.bind(&sql, &params)?,
            };
            match planning_db.check_plan(&binding) {
                Ok(()) => Ok(binding),
                Err(refusal) => Err(verdict_for(refusal, &binding, principal.as_ref())),
            }
        });
        planned.await.map_err(|refusal| {
            let refusal = query::with_nearest_table(refusal, &layout);
            query::with_unused_parameter(refusal, statement, given.keys())
        })
    }

    /// Returns when a state is durable.
    pub(crate) async fn wait_durable(&self, seq: Seq) -> Result<(), Refusal> {
        durable::reached(&self.durable, seq, &self.health).await
    }

    /// Accepts no more queries, and interrupts running ones.
    pub(crate) fn close(&self) {
        self.readers.close();
        self.lookups.close();
    }
}

/// Returns a verdict on a live query as its caller may see it.
fn verdict_for(refusal: Refusal, binding: &Binding, principal: Option<&QueryPrincipal>) -> Refusal {
    match principal {
        Some(principal) => explain::restrict_verdict(refusal, binding, principal),
        None => refusal,
    }
}

/// Runs a query of an unrestricted caller as planned.
fn run_chosen(
    reader: &mut Reader,
    tables: &LiveTables,
    binding: &Binding,
    as_of: Option<Seq>,
    output: &mut Output<'_>,
) -> Result<Seq, Refusal> {
    planned::run_once(reader, tables, binding, as_of, output).map_err(|failure| match failure {
        QueryFailure::Refused(refusal) => refusal,
        QueryFailure::Outdated => unreachable!("no policy restricts the query"),
    })
}

/// The parameters by names without the sigil, as a plan names them.
fn with_bare_names(params: &Map<String, JsonValue>) -> Map<String, JsonValue> {
    let bare = params.iter().map(|(name, value)| (bare_name(name).to_owned(), value.clone()));
    bare.collect()
}
