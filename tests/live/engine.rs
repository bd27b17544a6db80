//! The real engine over tables of every kind, with one reducer that writes any row. It tests what
//! the other proofs assume: change capture, retention for resume, and publication.

use abide_engine::{Budget, Config, Engine};
use abide_schema::reducer::Caller;
use abide_schema::table::{Key, Kind};
use abide_schema::wire::BatchCall;
use abide_schema::{Abort, Context, Module, Seq, Table, TableSpec, Value, reducer, table};
use serde_json::{Value as JsonValue, json};
use tempfile::TempDir;

use crate::proof::literals;
use crate::world::Random;

/// A rowid table with a column of every kind.
#[table(name = "r", index(a), index(b), index(c))]
pub(crate) struct R {
    /// Its number.
    #[column(key)]
    pub(crate) id: i64,
    /// An integer.
    pub(crate) a: Option<i64>,
    /// Another integer.
    pub(crate) b: Option<i64>,
    /// A text.
    pub(crate) c: Option<String>,
    /// A double.
    pub(crate) x: Option<f64>,
    /// Bytes.
    pub(crate) z: Option<Vec<u8>>,
}

/// A table with a text key.
#[table(name = "s", without_rowid, index(b), index(c))]
pub(crate) struct S {
    /// The name.
    #[column(key)]
    pub(crate) k: String,
    /// An integer.
    pub(crate) b: Option<i64>,
    /// A text.
    pub(crate) c: Option<String>,
    /// A NOT NULL integer.
    pub(crate) n: i64,
}

/// A table with a key of two columns.
#[table(name = "p", index(a), index(x))]
pub(crate) struct P {
    /// The first key column.
    #[column(key)]
    pub(crate) g: String,
    /// The second key column.
    #[column(key)]
    pub(crate) n: i64,
    /// A double.
    pub(crate) x: Option<f64>,
    /// An integer.
    pub(crate) a: Option<i64>,
}

/// The cells of a row or key.
struct Cells(Vec<Value>);

impl Key for Cells {
    fn cells(self) -> Vec<Value> {
        self.0
    }
}

/// Replaces the row with this key, or deletes it.
#[reducer]
pub(crate) fn put(
    ctx: &mut Context<'_>,
    table: String,
    row: Vec<JsonValue>,
    how: String,
) -> Result<i64, Abort> {
    let cells: Vec<Value> =
        row.iter().map(|cell| Value::from_json(cell).expect("the test sends cells")).collect();
    match table.as_str() {
        "r" => put_row::<R>(ctx, &cells, &how),
        "s" => put_row::<S>(ctx, &cells, &how),
        _ => put_row::<P>(ctx, &cells, &how),
    }
}

fn put_row<T: Table + Clone>(
    ctx: &mut Context<'_>,
    cells: &[Value],
    how: &str,
) -> Result<i64, Abort> {
    let row = T::from_row(cells).expect("the test sends rows of the table");
    let key = || Cells(T::SPEC.key_of(cells));
    match (ctx.get::<T>(key())?, how) {
        (None, "delete") => return Ok(0),
        (Some(_), "delete") => ctx.delete::<T>(key())?,
        (Some(_), "touch") => ctx.touch(row)?,
        (Some(_), _) => ctx.update(&row)?,
        (None, _) => drop(ctx.insert(row)?),
    }
    Ok(1)
}

/// The tables, in the order in which they are declared.
pub(crate) fn tables() -> Vec<&'static TableSpec> {
    vec![R::SPEC, S::SPEC, P::SPEC]
}

fn module() -> Module {
    let module = Module::new("letters").table::<R>().table::<S>().table::<P>();
    module.reducer(put::definition())
}

/// An engine over a file in its own folder.
pub(crate) struct EngineFixture {
    folder: TempDir,
    engine: Option<Engine>,
}

impl EngineFixture {
    pub(crate) fn new() -> EngineFixture {
        let folder = TempDir::new().expect("a folder can be made");
        let mut fixture = EngineFixture { folder, engine: None };
        fixture.open();
        fixture
    }

    pub(crate) fn engine(&self) -> &Engine {
        self.engine.as_ref().expect("the engine is open")
    }

    fn open(&mut self) {
        let path = self.folder.path().join("abide.db");
        let mut config = Config::new(vec![module()]);
        // This test needs deltas, not reruns.
        config.live_budget = Budget::UNLIMITED;
        let engine = Engine::open(path, config);
        self.engine = Some(engine.expect("the file can be opened"));
    }

    /// Drops the engine without a checkpoint, and opens it again.
    pub(crate) fn restart(&mut self) {
        self.engine = None;
        self.open();
    }

    /// Commits one or several rows. Returns the end of the log.
    pub(crate) async fn commit(&self, random: &mut Random) -> Seq {
        let count = *random.pick(&[1, 1, 1, 2, 3, 6]);
        let calls: Vec<BatchCall> = (0..count).map(|_| call(random)).collect();
        let done = self.engine().batch(&Caller::new("writer"), &calls, None).await;
        done.expect("every row may be written").seq
    }
}

fn call(random: &mut Random) -> BatchCall {
    let table = *random.pick(&tables());
    let row: Vec<JsonValue> = table
        .columns
        .iter()
        .enumerate()
        .map(|(at, column)| {
            if table.key.contains(&at) && column.kind == Kind::Integer {
                return json!(1 + random.below(7));
            }
            if table.key.contains(&at) {
                return literals::random_key(random, column.kind).to_json();
            }
            if column.nullable && random.below(5) == 0 {
                return JsonValue::Null;
            }
            literals::random_of_kind(random, column.kind).to_json()
        })
        .collect();
    let how = *random.pick(&["put", "put", "put", "touch", "delete", "delete"]);
    let args = json!({"table": table.name, "row": row, "how": how});
    BatchCall { reducer: "put".to_owned(), args }
}
