//! A user's module that stores policies, roles and identities in tables of its own: the engine knows them by the
//! declaration only, and has no table `policies`, `roles` or `identities`.

use abide_engine::{Engine, Start, SubscribeRequest, Update};
use abide_schema::reducer::{Caller, PolicyTables, RowVisibility};
use abide_schema::{Abort, Code, Context, Json, Module, Seq, Table as _, reducer, table};
use abide_tests::world::World;
use serde_json::{Map, json};

use super::{ask, caller};

/// The rows that members of a team may see.
#[table(name = "rules", without_rowid)]
pub(crate) struct Rule {
    /// The table.
    #[column(key)]
    pub(crate) about: String,
    /// The team.
    #[column(key)]
    pub(crate) team: String,
    /// The visible rows.
    pub(crate) only: Option<String>,
    /// The hidden columns.
    pub(crate) without: Json,
}

/// A team.
#[table(name = "teams", without_rowid)]
pub(crate) struct Team {
    /// Its name.
    #[column(key)]
    pub(crate) name: String,
}

/// A member.
#[table(name = "people", without_rowid)]
pub(crate) struct Person {
    /// The id.
    #[column(key)]
    pub(crate) id: String,
}

/// A letter.
#[table(name = "letters")]
pub(crate) struct Letter {
    /// Assigned by the database.
    #[column(key)]
    pub(crate) id: i64,
    /// Who wrote it.
    pub(crate) author: String,
}

/// Adds a rule for all teams.
#[reducer]
pub(crate) fn add_rule(
    ctx: &mut Context<'_>,
    about: String,
    only: Option<String>,
) -> Result<Rule, Abort> {
    let without = Json::from(json!([]));
    ctx.insert(Rule { about, team: "*".to_owned(), only, without })
}

/// Adds a team.
#[reducer]
pub(crate) fn add_team(ctx: &mut Context<'_>, name: String) -> Result<Team, Abort> {
    ctx.insert(Team { name })
}

/// Adds a member.
#[reducer]
pub(crate) fn add_person(ctx: &mut Context<'_>, id: String) -> Result<Person, Abort> {
    ctx.insert(Person { id })
}

/// Writes a letter.
#[reducer]
pub(crate) fn write_letter(ctx: &mut Context<'_>, author: String) -> Result<Letter, Abort> {
    ctx.insert(Letter { id: 0, author })
}

/// The number of letters that the caller's reducers reach.
#[reducer]
pub(crate) fn count_letters(ctx: &mut Context<'_>) -> Result<i64, Abort> {
    ctx.count::<Letter>("", &[])
}

fn module() -> Module {
    Module::new("post")
        .table::<Rule>()
        .table::<Team>()
        .table::<Person>()
        .visible::<Letter>(RowVisibility::Open)
        .policy_tables(PolicyTables {
            policies: Rule::SPEC,
            query: "SELECT about, team, only, without FROM main.rules ORDER BY about, team",
            roles: Team::SPEC,
            identities: Person::SPEC,
        })
        .reducer(add_rule::definition())
        .reducer(add_team::definition())
        .reducer(add_person::definition())
        .reducer(write_letter::definition())
        .reducer(count_letters::definition())
}

/// The number of letters that a query of ann returns, and the number that her reducers reach.
async fn letters(engine: &Engine) -> (usize, String) {
    let ann = caller("ann", "reader", &[], &[]);
    let found = ask(engine, &ann, "SELECT author FROM letters", None).await.unwrap();
    let reached = engine.call(&ann, "count_letters", &json!({}), None).await.unwrap();
    (found.rows.len(), reached.result)
}

/// Whether ann can resume from a seq with the changes alone.
async fn resumes(engine: &Engine, from: Seq) -> bool {
    let mut connection = engine.connect(&caller("ann", "reader", &[], &[]));
    let params = Map::new();
    let request = SubscribeRequest::new("q", "SELECT id, author FROM letters", &params);
    let request = SubscribeRequest { start: Start::After(from), ..request };
    connection.subscribe(&request).await.unwrap();
    match connection.next().await {
        Update::Delta { .. } => true,
        Update::Error { refusal, .. } if refusal.code == Code::ResyncRequired => false,
        other => panic!("{other:?}"),
    }
}

#[test]
fn policies_are_read_from_the_declared_tables() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let mut world = World::new(abide_reducers::modules);
        world.close();
        let path = world.folder.path().join("own.db");
        let engine = Engine::open(path, world.config(vec![module()])).unwrap();
        let local = Caller::new("local");
        let call = async |reducer: &str, args| {
            engine.call(&local, reducer, &args, None).await.unwrap().seq
        };
        call("write_letter", json!({"author": "ann"})).await;
        let before = call("write_letter", json!({"author": "bob"})).await;
        assert_eq!(letters(&engine).await, (2, "2".to_owned()));
        assert!(resumes(&engine, before).await);

        let rule = json!({"about": "letters", "only": "author = :caller_id"});
        let ruled = call("add_rule", rule).await;
        assert_eq!(letters(&engine).await, (1, "1".to_owned()));
        assert!(!resumes(&engine, before).await, "the policies have changed since");
        assert!(resumes(&engine, ruled).await);

        let bob = call("add_person", json!({"id": "bob"})).await;
        assert!(resumes(&engine, ruled).await, "another identity is not concerned");
        call("add_person", json!({"id": "ann"})).await;
        assert!(!resumes(&engine, bob).await, "the identity has changed since");
        let now = call("write_letter", json!({"author": "ann"})).await;
        assert!(resumes(&engine, now).await);
        call("add_team", json!({"name": "reader"})).await;
        assert!(!resumes(&engine, now).await, "a role has changed since");
        engine.close();
    });
}
