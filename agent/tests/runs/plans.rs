//! Plans of agents, and their events.

use abide_client::rows::{PlanStep, PlanVersion, SessionPlan};
use abide_models::Script;
use expect_test::expect;
use serde_json::json;

use crate::fixture::{FixtureOptions, RuntimeFixture, answering, temporary_folder};
use crate::scripted_model::Watched;

const SCRIPT: &str = r#"
answers:
  - calls:
      - name: manage_todo_list
        arguments:
          operation: write
          todos: [{ id: 1, title: look, status: in-progress }, { id: 2, title: note }]
      - { name: look, arguments: { order: A } }
  - calls:
      - name: manage_todo_list
        arguments: { operation: update, todos: [{ id: 1, status: completed }, { id: 2, status: in-progress }] }
      - name: manage_todo_list
        arguments: { operation: update, todos: [{ id: 9, status: completed }] }
  - text: Looked.
"#;

/// The planning events of a run, one per line.
async fn output(definition: &str) -> (String, String) {
    let fixture = RuntimeFixture::start(definition, SCRIPT).await;
    let run = fixture.begin("Look and note.").await;
    let (output, _) = fixture.output(&run.id, 0).await;
    let of_plan =
        output.lines().filter(|it| it.contains("planning") || it.contains("step_complete"));
    let of_plan: String = of_plan.map(|line| format!("{line}\n")).collect();
    let transcript = fixture.transcript().await;
    fixture.close().await;
    (of_plan, transcript)
}

#[tokio::test]
async fn plans_and_completed_steps_are_published() {
    let (output, transcript) = output("tools: [look]\nplanning: true\n").await;
    expect![[r#"
        1 planning {"adherence":0.0,"items":[{"id":1,"status":"in-progress","title":"look"},{"id":2,"status":"not-started","title":"note"}],"operation":"write","todos":["look","note"],"version":1}
        1 planning {"adherence":0.5,"items":[{"id":1,"status":"completed","title":"look"},{"id":2,"status":"in-progress","title":"note"}],"operation":"update","todos":["look","note"],"version":2}
        1 step_complete {"description":"look","step_number":1,"total_steps":2}
    "#]].assert_eq(&output);
    assert!(transcript.contains("the plan has no step 9"), "{transcript}");
}

#[tokio::test]
async fn an_agent_without_planning_has_no_plan() {
    let (output, transcript) = output("tools: [look]\n").await;
    assert_eq!(output, "");
    assert!(transcript.contains("this agent makes no plans"), "{transcript}");
}

/// A model that forgets the plan: it completes a step without starting the next one, starts two, uses an old version,
/// and reads.
const FORGETS: &str = r#"
answers:
  - calls:
      - name: manage_todo_list
        arguments:
          operation: write
          todos:
            - { id: 1, title: look, status: in-progress, exit_criteria: It was seen. }
            - { id: 2, title: note, owner: helper }
            - { id: 3, title: pay }
  - calls:
      - name: manage_todo_list
        arguments: { operation: update, todos: [{ id: 1, status: completed }] }
      - name: manage_todo_list
        arguments: { operation: update, todos: [{ id: 2, status: in-progress }] }
      - name: manage_todo_list
        arguments: { operation: update, expected_version: 7, todos: [{ id: 3, status: blocked }] }
  - calls:
      - name: manage_todo_list
        arguments:
          operation: update
          expected_version: 1
          todos: [{ id: 1, status: completed, evidence: seen }, { id: 2, status: in-progress }]
      - { name: manage_todo_list, arguments: { operation: read } }
  - text: Looked.
"#;

#[tokio::test]
async fn exactly_one_step_is_in_progress_while_steps_are_left() {
    let fixture = RuntimeFixture::start("planning: true\n", FORGETS).await;
    let run = fixture.begin("Look and note.").await;
    let (output, _) = fixture.output(&run.id, 0).await;
    let transcript = fixture.transcript().await;
    for refused in [
        "tool [r1~2.1]: exactly one step must be in-progress while steps are left",
        "tool [r1~2.2]: only one step can be in-progress",
        "tool [r1~2.3]: the plan is at version 1, not 7: read it and repeat the change",
    ] {
        assert!(transcript.contains(refused), "{refused}\n{transcript}");
    }
    // The rows: the plan, its steps, and each version.
    let plan: Vec<SessionPlan> =
        fixture.abide.sql("SELECT * FROM plans").fetch().await.expect("it succeeds");
    assert_eq!((plan[0].version, plan[0].steps, plan[0].completed), (2, 3, 1));
    let sql = "SELECT * FROM plan_steps ORDER BY step";
    let steps: Vec<PlanStep> = fixture.abide.sql(sql).fetch().await.expect("it succeeds");
    let steps: Vec<(&str, &str)> =
        steps.iter().map(|step| (step.title.as_str(), step.status.as_str())).collect();
    assert_eq!(steps, [("look", "completed"), ("note", "in_progress"), ("pay", "not_started")]);
    let sql = "SELECT * FROM plan_versions ORDER BY version";
    let versions: Vec<PlanVersion> = fixture.abide.sql(sql).fetch().await.expect("it succeeds");
    assert_eq!(versions.len(), 2);
    assert_eq!(versions[1].steps.value()[0]["evidence"], "seen");
    // An event for each write and each read, with the adherence.
    let of_plan = output.lines().filter(|line| line.contains(" planning "));
    let of_plan: Vec<bool> = of_plan
        .map(|line| line.contains("\"adherence\":0.33") && line.contains("\"version\":2"))
        .collect();
    assert_eq!(of_plan, [false, true, true], "{output}");
    fixture.close().await;
}

/// The model reads the current plan in its instructions, in each request.
#[tokio::test]
async fn the_plan_block_is_part_of_the_prompt() {
    let mut options = FixtureOptions::new("planning: true\nsystem_prompt: Be kind.\n", FORGETS);
    let watched = Watched::new(Script::from_text(FORGETS).expect("it is valid"));
    options.models = answering(watched.clone());
    let fixture = options.open().await;
    let run = fixture.begin("Look and note.").await;
    fixture.output(&run.id, 0).await;
    let prompts: Vec<String> =
        watched.requests().into_iter().map(|request| request.system.unwrap_or_default()).collect();
    assert!(!prompts[0].contains("Current plan"), "{}", prompts[0]);
    let block = "## Current plan, version 2\n\n\
                 1. [completed] look – done when: It was seen. – evidence: seen\n\
                 2. [in-progress] note – owner: helper\n3. [not-started] pay";
    assert!(prompts[3].ends_with(block), "{}", prompts[3]);
    fixture.close().await;
}

/// The database refuses what the runtime would refuse, even from another driver.
#[tokio::test]
async fn the_database_enforces_the_rules_of_plans() {
    let fixture = RuntimeFixture::start("planning: true\n", "answers: []").await;
    fixture.close().await;
    let folder = temporary_folder();
    let abide = abide_client::Abide::open(folder.path().join("abide.db")).expect("it opens");
    let call = async |name: &str, arguments: serde_json::Value| {
        abide.call_by_name(name, arguments).await.map_err(|error| error.to_string())
    };
    call("register_agent", json!({"name": "clerk", "definition": {}})).await.expect("it succeeds");
    call("create_session", json!({"agent": "clerk", "id": "s1"})).await.expect("it succeeds");
    call("start_run", json!({"session_id": "s1", "id": "r1"})).await.expect("it succeeds");
    call("claim_run", json!({"id": "r1", "driver": "d", "lease_ms": 60000}))
        .await
        .expect("it succeeds");
    let token: Vec<(i64,)> =
        abide.sql("SELECT fencing_token FROM runs").fetch().await.expect("it succeeds");
    let write = async |version: i64, statuses: &[&str]| {
        let steps = statuses.iter().map(|status| json!({"title": "x", "status": status}));
        let steps: Vec<serde_json::Value> = steps.collect();
        let arguments = json!({"id": "r1", "fencing_token": token[0].0,
            "expected_version": version, "steps": steps});
        match call("write_plan", arguments).await {
            Ok(_) => "ok".to_owned(),
            Err(error) => error.split(" (").next().unwrap_or_default().to_owned(),
        }
    };
    let new = "not_started";
    let now = "in_progress";
    let done = "completed";
    let stuck = "blocked";
    let output = [
        write(0, &[new, new]).await,
        write(0, &[new, new]).await,
        write(1, &[now, now]).await,
        write(1, &[done, new]).await,
        write(1, &[stuck, new]).await,
        write(1, &[now, new]).await,
        write(2, &[done, now]).await,
        write(3, &[now, done]).await,
        write(4, &[done, stuck]).await,
        write(5, &[]).await,
    ];
    expect![[r#"
        ok
        the plan is at version 1, not 0
        2 steps are in progress
        no step is in progress, but steps are left and work has begun
        no step is in progress, but steps are left and work has begun
        ok
        ok
        ok
        ok
        ok"#]]
    .assert_eq(&output.join("\n"));
    abide.close().await;
}

/// The model is asked to revise the plan after a failure, until it changes the plan.
#[tokio::test]
async fn replan_policy_in_the_prompt() {
    let script = r#"
answers:
  - calls:
      - name: manage_todo_list
        arguments: { operation: write, todos: [{ id: 1, title: look, status: in-progress }] }
  - calls: [{ name: look, arguments: { wrong: A } }]
  - calls: [{ name: look, arguments: { order: A } }]
  - calls:
      - name: manage_todo_list
        arguments: { operation: update, todos: [{ id: 1, status: completed }] }
  - text: Looked.
"#;
    let definition = "tools: [look]\nplanning: true\nprofile: { plan: { replan: on_failure } }\n";
    let watched = Watched::new(Script::from_text(script).expect("it is valid"));
    let options = FixtureOptions::new(definition, "answers: []");
    let fixture = FixtureOptions { models: answering(watched.clone()), ..options }.open().await;
    let run = fixture.begin("Look.").await;
    fixture.output(&run.id, 0).await;
    let asks: Vec<bool> = watched
        .requests()
        .iter()
        .map(|it| it.system.as_ref().is_some_and(|it| it.contains("A call of look has failed")))
        .collect();
    assert_eq!(asks, [false, false, true, true, false]);
    fixture.close().await;
}
