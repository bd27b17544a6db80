//! The test data of live queries: a help desk of four tables with suitable indexes, any number of rows, and commits
//! that do not change its size.

use std::sync::Arc;

use abide_live::{Catalog, Changes};
use abide_schema::{Abort, Code, Context, Module, Refusal, Row, Table, Value, reducer, table};
use tempfile::TempDir;

use super::database::Database;

/// An agent at the desk.
#[table(name = "agents", index(team))]
pub(crate) struct Agent {
    #[column(key)]
    id: i64,
    team: String,
}

/// A conversation.
#[table(name = "sessions", without_rowid, index(agent_id))]
pub(crate) struct Session {
    #[column(key)]
    id: String,
    #[column(references = "agents(id)")]
    agent_id: i64,
    status: String,
    updated_at: i64,
}

/// A message of a conversation.
#[table(name = "messages", index(session_id), index(role, tokens), index(tokens))]
pub(crate) struct Message {
    #[column(key)]
    id: i64,
    #[column(references = "sessions(id)")]
    session_id: String,
    role: String,
    tokens: i64,
    content: String,
}

/// A review of a message.
#[table(name = "reviews", index(message_id))]
pub(crate) struct Review {
    #[column(key)]
    id: i64,
    #[column(references = "messages(id)")]
    message_id: i64,
    score: i64,
}

/// A counter: the single row that many subscribers watch.
#[table(name = "counters", without_rowid)]
pub(crate) struct Counter {
    #[column(key)]
    id: String,
    value: i64,
}

/// Increments a counter.
#[reducer]
pub(crate) fn count(ctx: &mut Context<'_>, id: String) -> Result<i64, Abort> {
    let Some(mut counter) = ctx.get::<Counter>(&id)? else {
        return Ok(ctx.insert(Counter { id, value: 1 })?.value);
    };
    counter.value = counter
        .value
        .checked_add(1)
        .ok_or_else(|| Refusal::new(Code::LimitExceeded, "the counter is at its maximum"))?;
    ctx.update(&counter)?;
    Ok(counter.value)
}

/// The help desk as a module of an engine.
pub(crate) fn module() -> Module {
    Module::new("desk")
        .table::<Agent>()
        .table::<Session>()
        .table::<Message>()
        .table::<Review>()
        .table::<Counter>()
        .reducer(count::definition())
}

/// Number of agents, for all sizes; two in each team.
const AGENTS: i64 = 10;
const ROLES: [&str; 4] = ["user", "assistant", "tool", "system"];
/// The role of every message that a commit changes.
pub(crate) const ROLE: &str = "tool";
/// The agent whose session a commit changes.
pub(crate) const AGENT: i64 = 1;
/// The team of that agent.
pub(crate) const TEAM: &str = "team 1";
/// Upper bound of a message's tokens at the start.
const TOKENS: i64 = 1_000_000;
/// Tokens that sort a message before all others. Ends in 7, where there is no watched range.
const HIGH: i64 = 5_000_007;
/// Tokens that sort it behind most others.
const LOW: i64 = 507;
const CONTENT: &str = "Where is my parcel? It was to be here on Tuesday, by noon.";

/// The tables in a file, and the state of the last change.
pub(crate) struct HelpDesk {
    pub(crate) database: Database,
    pub(crate) catalog: Arc<Catalog>,
    sessions: i64,
    messages: i64,
    commits: i64,
    /// The message that is inserted and deleted, with its review.
    message: Option<Row>,
    review: Option<Row>,
    session: Row,
    _dir: TempDir,
}

impl HelpDesk {
    /// A desk with this many messages, and a tenth as many sessions and reviews.
    pub(crate) fn new(messages: i64, dir: &std::path::Path) -> HelpDesk {
        let dir = TempDir::new_in(dir).expect("a folder for the tables");
        let mut database = Database::create(&dir.path().join("desk.db"));
        let catalog = Arc::new(Catalog::new(module().tables, Vec::new()));
        let sessions = (messages / 10).max(AGENTS);
        for table in module().tables {
            // Creating indexes after the inserts is faster.
            database.execute(&table.ddl()[0], &[]);
        }
        fill(&mut database, sessions, messages);
        for statement in module().tables.iter().flat_map(|table| table.ddl().split_off(1)) {
            database.execute(&statement, &[]);
        }
        for statement in catalog.setup_sql() {
            database.execute(&statement, &[]);
        }
        database.execute("ANALYZE", &[]);
        database.take_steps();
        let session = session(0).into_row().into();
        HelpDesk {
            database,
            catalog,
            sessions,
            messages,
            commits: 0,
            message: None,
            review: None,
            session,
            _dir: dir,
        }
    }

    /// Makes the changes of one call in a transaction that it leaves open: a message is inserted with a review,
    /// updated together with it, or deleted, and its session is updated. Every second message is inserted with the
    /// most tokens of all; the others get them in an update. So one of three commits does not affect the top.
    pub(crate) fn change(&mut self) -> Changes {
        let cycle = self.commits / 3;
        let stage = self.commits % 3;
        self.commits += 1;
        self.database.execute("BEGIN IMMEDIATE", &[]);
        if stage == 0 {
            // Distributed over the sessions of one agent.
            let of_agent = self.sessions / AGENTS;
            self.session = self.stored_session(cycle.wrapping_mul(7_919) % of_agent * AGENTS);
        }
        let tokens = if (cycle + stage) % 2 == 0 { HIGH + 10 * (cycle % 100) } else { LOW };
        let id = self.messages + 1 + cycle;
        let message = (stage < 2).then(|| {
            let session_id = text(&self.session[0]);
            let role = ROLE.to_owned();
            let content = CONTENT.to_owned();
            Row::from(Message { id, session_id, role, tokens, content }.into_row())
        });
        let review = message
            .is_some()
            .then(|| Review { id, message_id: id, score: stage }.into_row().into());
        let mut session = self.session.to_vec();
        session[3] = Value::Integer(self.commits);

        let mut changes = Changes::new();
        let old = std::mem::replace(&mut self.session, session.into());
        let session = Some(self.session.clone());
        self.write::<Session>(Some(old), session, &mut changes);
        let old = std::mem::replace(&mut self.message, message.clone());
        self.write::<Message>(old, message, &mut changes);
        let old = std::mem::replace(&mut self.review, review);
        let review = self.review.clone();
        self.write::<Review>(old, review, &mut changes);
        changes
    }

    /// Commits the transaction.
    pub(crate) fn commit(&mut self) {
        self.database.execute("COMMIT", &[]);
    }

    fn write<T: Table>(&mut self, old: Option<Row>, new: Option<Row>, changes: &mut Changes) {
        let table = T::SPEC;
        let statement = match (&old, &new) {
            (None, Some(_)) => insert(table.name, table.columns.len()),
            (Some(_), Some(_)) => {
                let columns = table.columns.iter().enumerate();
                let set = columns.map(|(at, column)| format!("{} = ?{}", column.name, at + 1));
                format!(
                    "UPDATE {} SET {} WHERE id = ?1",
                    table.name,
                    set.collect::<Vec<_>>().join(", ")
                )
            }
            (Some(_), None) => format!("DELETE FROM {} WHERE id = ?1", table.name),
            (None, None) => return,
        };
        let cells = match (&old, &new) {
            (_, Some(new)) => new.to_vec(),
            (Some(old), None) => vec![old[0].clone()],
            (None, None) => return,
        };
        self.database.execute(&statement, &cells);
        changes.push(table.name, old, new);
    }

    fn stored_session(&mut self, number: i64) -> Row {
        let mut found = None;
        let id = [Value::from(session_id(number))];
        let sql = "SELECT * FROM sessions WHERE id = ?1";
        let outcome = abide_live::Sql::run(&mut self.database, sql, &id, &mut |row| {
            found = Some(row.into());
        });
        outcome.expect("the session can be read");
        found.expect("the session exists")
    }
}

fn fill(database: &mut Database, sessions: i64, messages: i64) {
    database.execute("BEGIN", &[]);
    for id in 1..=AGENTS {
        let team = format!("team {}", id % (AGENTS / 2));
        database.execute(&insert("agents", 2), &Agent { id, team }.into_row());
    }
    let sql = insert("sessions", 4);
    for number in 0..sessions {
        database.execute(&sql, &session(number).into_row());
    }
    let sql = insert("messages", 5);
    for number in 0..messages {
        // Iterates over the sessions; roles alternate within each session.
        let role = ROLES[((number / sessions + number) % 4) as usize].to_owned();
        let tokens = number.wrapping_mul(2_654_435_761) % TOKENS;
        let session_id = session_id(number % sessions);
        let content = CONTENT.to_owned();
        let message = Message { id: number + 1, session_id, role, tokens, content };
        database.execute(&sql, &message.into_row());
    }
    let sql = insert("reviews", 3);
    for number in 0..messages / 10 {
        let review = Review { id: number + 1, message_id: number * 10 + 1, score: number % 5 };
        database.execute(&sql, &review.into_row());
    }
    database.execute("COMMIT", &[]);
}

fn session(number: i64) -> Session {
    let id = session_id(number);
    let status = "active".to_owned();
    Session { id, agent_id: number % AGENTS + 1, status, updated_at: 0 }
}

fn session_id(number: i64) -> String {
    format!("s_{number:07}")
}

fn insert(table: &str, columns: usize) -> String {
    let marks: Vec<String> = (1..=columns).map(|at| format!("?{at}")).collect();
    format!("INSERT INTO {table} VALUES ({})", marks.join(", "))
}

fn text(cell: &Value) -> String {
    match cell {
        Value::Text(text) => text.clone(),
        other => panic!("{other:?} is not text"),
    }
}
