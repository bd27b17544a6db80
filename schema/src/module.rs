//! A module: tables, reducers, deadlines and row visibility, declared together.

use crate::caller::BuiltInRole;
#[cfg(doc)]
use crate::caller::Caller;
use crate::limits;
use crate::reducer::{Abort, Context, Definition};
use crate::table::{Kind, Table, TableSpec};

/// A migration step of a module's tables to the next version.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// The version after this step.
    pub to: u32,
    /// The statements.
    pub sql: &'static str,
}

/// Rows that are due at a time in one of their columns. When the time has come, the engine calls the
/// reducer as the caller [`Caller::SYSTEM`], with the row's key and the due time under their columns'
/// names; no other caller can call it. The reducer must remove the row from the condition or set a later time.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    /// The table.
    pub table: &'static TableSpec,
    /// The column with the due time.
    pub column: &'static str,
    /// The condition of rows with a deadline, as SQL. An index must give them in the order of the column.
    pub condition: &'static str,
    /// The reducer to call.
    pub reducer: Definition,
    /// Maximum number of rows that one transaction processes.
    pub per_commit: usize,
    /// Set if the rows continue calls of other callers; see [`Module::continuing`].
    pub continuation: Option<Continuation>,
    /// Whether the time is the end of a lease: see [`Module::lease`].
    pub is_lease: bool,
}

/// The rows of a deadline that stand for the rest of a call, which works in steps: see [`Module::continuing`].
#[derive(Clone, Copy, Debug)]
pub struct Continuation {
    /// The reducer that began the work.
    pub reducer: &'static str,
    /// The text column that names what the work is done for. The results of both reducers have a member with its name and
    /// value.
    pub subject: &'static str,
    /// The text column with the id of the caller.
    pub caller: &'static str,
    /// The text column with the [`Caller::authority`] of the caller.
    pub authority: &'static str,
}

impl Deadline {
    /// Returns the query for the rows due first, behind a place and up to a time: at most `?1` rows of the alias `r`,
    /// in the order of their due times. A row has its place ([`Deadline::place`]), then its key, then `scope`. The
    /// place is `?2` and so on, and the time is the last parameter.
    #[must_use]
    pub fn query(&self, scope: &str) -> String {
        let keys = self.keys().join(", ");
        let place = self.place().join(", ");
        let from = self.behind_place();
        let parameter = self.place().len() + 2;
        let column = self.column;
        format!(
            "SELECT {place}, {keys}, {scope}{from} AND {column} <= ?{parameter} ORDER BY {place} LIMIT ?1"
        )
    }

    /// Returns the query for the first due time behind a place. The place is `?2` and so on; `?1` is unused.
    #[must_use]
    pub fn next_query(&self) -> String {
        let from = self.behind_place();
        let column = self.column;
        format!("SELECT {column}{from} ORDER BY {column} LIMIT 1")
    }

    /// FROM and WHERE of the rows behind a place.
    fn behind_place(&self) -> String {
        let Deadline { table, column, condition, .. } = self;
        let own = table.indexes.iter().find(|index| index.columns == [*column]);
        // Even if the column has an index of its own, SQLite might prefer another one.
        let index = own.map(|index| format!(" INDEXED BY {}", table.index_name(index)));
        let place = self.place().join(", ");
        let parameters: Vec<String> =
            (0..self.place().len()).map(|at| format!("?{}", at + 2)).collect();
        format!(
            " FROM {name} AS r{index} \
             WHERE {condition} AND {column} IS NOT NULL AND ({place}) > ({parameters})",
            name = table.name,
            index = index.unwrap_or_default(),
            parameters = parameters.join(", "),
        )
    }

    /// Returns the query whether the row with the due time `?1` and the key `?2` and so on is still due then: `scope`,
    /// or nothing. The columns of the continuation follow, if there is one: the subject, the caller and its authority.
    #[must_use]
    pub fn row_query(&self, scope: &str) -> String {
        let Deadline { table, column, condition, continuation, .. } = self;
        let further = continuation.map_or_else(String::new, |it| {
            format!(", r.{}, r.{}, r.{}", it.subject, it.caller, it.authority)
        });
        let keys: Vec<String> = self
            .keys()
            .into_iter()
            .enumerate()
            .map(|(at, key)| format!("r.{key} = ?{}", at + 2))
            .collect();
        format!(
            // Without the plus, SQLite might read all rows with this due time.
            "SELECT {scope}{further} FROM {name} AS r WHERE {keys} AND +r.{column} = ?1 AND {condition}",
            name = table.name,
            keys = keys.join(" AND "),
        )
    }

    /// The columns that order the rows: the due time, and for rows with equal ones what the index has behind it.
    #[must_use]
    pub fn place(&self) -> Vec<&'static str> {
        let rest = if self.table.without_rowid { self.keys() } else { vec!["rowid"] };
        std::iter::once(self.column).chain(rest).collect()
    }

    fn keys(&self) -> Vec<&'static str> {
        self.table.key.iter().map(|at| self.table.columns[*at].name).collect()
    }
}

/// Checks a call of a restricted caller before it runs, and refuses it if the caller lacks permission.
/// It can read rows like a reducer, but writes none. `roles` are those that the reducer declares.
pub type Guard = fn(&mut Context<'_>, reducer: &str, roles: &[BuiltInRole]) -> Result<(), Abort>;

/// How the server looks up tokens: SQL over a module's tables.
#[derive(Clone, Copy, Debug)]
pub struct CredentialQueries {
    /// The tables that the queries depend on.
    pub tables: &'static [&'static str],
    /// Returns 1 if credentials are required.
    pub requires_credentials: &'static str,
    /// For the token `:id`: hash, expires_at, revoked_at; its identity's id, role, capabilities, scope, limits,
    /// disabled_at; its role's capabilities, limits.
    pub token: &'static str,
    /// For the role `:name`: capabilities, limits.
    pub role: &'static str,
    /// For the identity `:id`: 1 if it is disabled, and its scope.
    pub disabled: &'static str,
}

/// The tables that decide what restricted callers see. The engine knows them by this declaration only.
#[derive(Clone, Copy, Debug)]
pub struct PolicyTables {
    /// The policies. A commit that changes this table activates the new policies.
    pub policies: &'static TableSpec,
    /// Returns all policies, in an order that follows from their keys: table, role (`*` means every role), condition
    /// (NULL means all rows), hidden columns (a JSON array).
    pub query: &'static str,
    /// The roles of callers. After a change, clients that resume get a whole snapshot.
    pub roles: &'static TableSpec,
    /// The identities; the first key column is the id of the caller. After a change of its own identity, a client
    /// that resumes gets a whole snapshot.
    pub identities: &'static TableSpec,
}

/// Numbers of a module's rows, for `/metrics`. They cover all scopes.
#[derive(Clone, Copy, Debug)]
pub struct MetricSeries {
    /// Its name. A counter has a name that ends with `_total`.
    pub name: &'static str,
    /// Its meaning.
    pub meaning: &'static str,
    /// The name of the label.
    pub label: &'static str,
    /// Returns a value of the label and its number in each row. It must be as cheap as a lookup: read a table with one
    /// row for each value of the label.
    pub query: &'static str,
}

/// Rows of a module that wait for somebody or something, for `/metrics`. They cover all scopes.
#[derive(Clone, Copy, Debug)]
pub struct WaitingRows {
    /// What waits, in the plural: `approvals`. The value of a label.
    pub kind: &'static str,
    /// Returns the time since which each row waits, as the column `since` in microseconds; `:now` is the current time. The
    /// engine adds a LIMIT, so the order must be that of an index: the oldest rows first if an index has them so.
    pub query: &'static str,
}

/// Tables and reducers of one domain, in one file.
#[derive(Clone, Debug)]
pub struct Module {
    /// The domain's name.
    pub name: &'static str,
    /// The version of its tables, stored in the file; starts at 1.
    pub version: u32,
    /// Migrations from older versions.
    pub steps: Vec<Step>,
    /// Its tables.
    pub tables: Vec<&'static TableSpec>,
    /// Views over them: name and the SELECT.
    pub views: Vec<(&'static str, &'static str)>,
    /// Its reducers.
    pub reducers: Vec<Definition>,
    /// Its deadlines.
    pub deadlines: Vec<Deadline>,
    /// Checks that every call of a restricted caller must pass.
    pub guards: Vec<Guard>,
    /// How the server looks up tokens.
    pub credential_queries: Option<CredentialQueries>,
    /// The tables with policies.
    pub policy_tables: Option<PolicyTables>,
    /// The table with sessions; see [`Module::sessions`].
    pub sessions: Option<&'static TableSpec>,
    /// Reducers that record denied attempts; see [`Module::denial_recorder`].
    pub denial_recorders: Vec<Definition>,
    /// Row visibility of its tables; a table without an entry is [`RowVisibility::Closed`].
    pub visibility: Vec<(&'static TableSpec, RowVisibility)>,
    /// Columns that hold copies of others; see [`Module::copied`].
    pub copies: Vec<ColumnCopies>,
    /// Members of arguments and results that the log keeps for replays but hides from restricted callers; see
    /// [`Module::secret`].
    pub secrets: Vec<(&'static str, &'static str)>,
    /// Numbers of its rows, for `/metrics`.
    pub metrics: Vec<MetricSeries>,
    /// Its rows that wait, for `/metrics`.
    pub waiting: Vec<WaitingRows>,
}

/// A column, as its table and its name.
pub type ColumnName = (&'static str, &'static str);

/// A column, and the columns that hold copies of its values.
pub type ColumnCopies = (ColumnName, &'static [ColumnName]);

/// Which rows of a table a restricted caller may see (a caller with a role other than admin, or a scope).
/// The scope always applies in addition. Policies restrict this further, and open closed tables; no policy
/// widens it. See `docs/policies.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowVisibility {
    /// None, until a policy for the caller's role permits some. The default.
    Closed,
    /// All: rows that belong to no tenant.
    Open,
    /// Rows within the caller's scope (see [`TableSpec::shared`]): all if the caller has none.
    InScope,
    /// Like `InScope`, without these columns.
    InScopeExcept(&'static [&'static str]),
    /// Rows that satisfy the condition, without these columns: SQL over the row and the caller, as in a
    /// policy.
    Where(&'static str, &'static [&'static str]),
}

impl Module {
    /// An empty module.
    #[must_use]
    pub fn new(name: &'static str) -> Module {
        Module {
            name,
            version: 1,
            steps: Vec::new(),
            tables: Vec::new(),
            views: Vec::new(),
            reducers: Vec::new(),
            deadlines: Vec::new(),
            guards: Vec::new(),
            credential_queries: None,
            policy_tables: None,
            sessions: None,
            denial_recorders: Vec::new(),
            visibility: Vec::new(),
            copies: Vec::new(),
            secrets: Vec::new(),
            metrics: Vec::new(),
            waiting: Vec::new(),
        }
    }

    /// Adds a migration step. Steps are given in order; applied to the tables
    /// of version 1 they must produce the tables as declared. A step must name each table whose rows it changes: queries of
    /// earlier states then still find them.
    #[must_use]
    pub fn step(mut self, sql: &'static str) -> Module {
        self.version += 1;
        self.steps.push(Step { to: self.version, sql });
        self
    }

    /// Adds a table.
    #[must_use]
    pub fn table<T: Table>(mut self) -> Module {
        self.tables.push(T::SPEC);
        self
    }

    /// Adds a table with its row visibility.
    #[must_use]
    pub fn visible<T: Table>(mut self, sight: RowVisibility) -> Module {
        self.visibility.push((T::SPEC, sight));
        self.table::<T>()
    }

    /// Declares that other columns, of any module, hold copies of a column or of parts of it. A policy that
    /// hides the column also hides the copies.
    #[must_use]
    pub fn copied(mut self, column: ColumnName, into: &'static [ColumnName]) -> Module {
        self.copies.push((column, into));
        self
    }

    /// Declares a secret: a member of a reducer's arguments or result that `events` hides from restricted
    /// callers. The log contains it, because a replay needs it.
    #[must_use]
    pub fn secret(mut self, reducer: &Definition, member: &'static str) -> Module {
        self.secrets.push((reducer.name, member));
        self
    }

    /// Adds numbers of its rows to `/metrics`.
    #[must_use]
    pub fn metric(mut self, series: MetricSeries) -> Module {
        self.metrics.push(series);
        self
    }

    /// Adds rows that wait to `/metrics`: how many they are, and since when the oldest one waits.
    #[must_use]
    pub fn waiting(mut self, rows: WaitingRows) -> Module {
        self.waiting.push(rows);
        self
    }

    /// Adds a view: a name and a SELECT.
    #[must_use]
    pub fn view(mut self, name: &'static str, select: &'static str) -> Module {
        self.views.push((name, select));
        self
    }

    /// Adds a reducer: `.reducer(append_message::definition())`.
    #[must_use]
    pub fn reducer(mut self, definition: Definition) -> Module {
        self.reducers.push(definition);
        self
    }

    /// Sets how the server looks up tokens.
    #[must_use]
    pub fn credential_queries(mut self, credential_queries: CredentialQueries) -> Module {
        self.credential_queries = Some(credential_queries);
        self
    }

    /// Declares the tables that decide what restricted callers see. Without them there are no policies.
    #[must_use]
    pub fn policy_tables(mut self, policy_tables: PolicyTables) -> Module {
        self.policy_tables = Some(policy_tables);
        self
    }

    /// Declares that the `session_id` of an event is the key of a row of this table: the event belongs to the scope
    /// of that row.
    #[must_use]
    pub fn sessions<T: Table>(mut self) -> Module {
        self.sessions = Some(T::SPEC);
        self
    }

    /// Adds a guard.
    #[must_use]
    pub fn guard(mut self, guard: Guard) -> Module {
        self.guards.push(guard);
        self
    }

    /// Adds a reducer that records denied attempts. The engine calls it, as
    /// [`Caller::SYSTEM`], with `caller`, `what` (the reducer or other request), `why`
    /// and `missed`: the number of attempts of that caller since the last record that were not
    /// recorded individually. No other caller can call it.
    #[must_use]
    pub fn denial_recorder(mut self, definition: Definition) -> Module {
        self.denial_recorders.push(definition);
        self
    }

    /// Adds a deadline: a reducer that is called for each row of the condition when the time in the column
    /// has come.
    ///
    /// # Panics
    /// The table has no such integer column.
    #[must_use]
    pub fn deadline<T: Table>(
        self,
        column: &'static str,
        condition: &'static str,
        reducer: Definition,
    ) -> Module {
        self.paced_deadline::<T>(column, condition, limits::DUE_PER_COMMIT, reducer)
    }

    /// Like [`Module::deadline`], for an expensive reducer: at most `per_commit` calls per transaction.
    ///
    /// # Panics
    /// The table has no such integer column.
    #[must_use]
    pub fn paced_deadline<T: Table>(
        mut self,
        column: &'static str,
        condition: &'static str,
        per_commit: usize,
        reducer: Definition,
    ) -> Module {
        let found = T::SPEC.column(column).map(|at| T::SPEC.columns[at].kind);
        assert_eq!(
            found,
            Some(Kind::Integer),
            "{}.{column} is not an integer column",
            T::SPEC.name
        );
        let table = T::SPEC;
        let continuation = None;
        self.deadlines.push(Deadline {
            table,
            column,
            condition,
            reducer,
            per_commit,
            continuation,
            is_lease: false,
        });
        self
    }

    /// Declares that the rows of the last deadline are leases: their holders must reach the engine to renew them. So the time
    /// in which no process has the file open may not count for them; the configuration of the engine decides it.
    ///
    /// # Panics
    /// There is no deadline.
    #[must_use]
    pub fn lease(mut self) -> Module {
        let deadline = self.deadlines.last_mut().expect("a deadline was declared before");
        deadline.is_lease = true;
        self
    }

    /// Declares that the rows of the last deadline continue calls that are too much work for one transaction. Each step is
    /// a call of the caller that began the work, with its present permissions for the first reducer, and its rows count
    /// against the limits of that caller. The call that began the work is answered when no row with its subject is left,
    /// with the result of the last step.
    ///
    /// A step that is refused is called once more, by [`Caller::SYSTEM`] and with the argument `error`: `{"code",
    /// "message"}`. It must end the work. The call that began it is answered with the refusal.
    ///
    /// # Panics
    /// There is no deadline, or its table does not have the columns.
    #[must_use]
    pub fn continuing(mut self, continuation: Continuation) -> Module {
        let deadline = self.deadlines.last_mut().expect("a deadline was declared before");
        for column in [continuation.subject, continuation.caller, continuation.authority] {
            let found = deadline.table.column(column).map(|at| deadline.table.columns[at].kind);
            let table = deadline.table.name;
            assert_eq!(found, Some(Kind::Text), "{table}.{column} is not a text column");
        }
        deadline.continuation = Some(continuation);
        self
    }
}
