//! Plans of agents, and their events.

use expect_test::expect;

use crate::fixture::RuntimeFixture;

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
        arguments: { operation: update, todos: [{ id: 1, status: completed }] }
      - name: manage_todo_list
        arguments: { operation: update, todos: [{ id: 9, status: completed }] }
  - text: Looked.
"#;

/// The planning events of a run, one per line.
async fn told(definition: &str) -> (String, String) {
    let fixture = RuntimeFixture::of(definition, SCRIPT).await;
    let run = fixture.begin("Look and note.").await;
    let (told, _) = fixture.told(&run.id, 0).await;
    let of_plan = told.lines().filter(|it| it.contains("planning") || it.contains("step_complete"));
    let of_plan: String = of_plan.map(|line| format!("{line}\n")).collect();
    let transcript = fixture.transcript().await;
    fixture.close().await;
    (of_plan, transcript)
}

#[tokio::test]
async fn plans_and_completed_steps_are_published() {
    let (told, transcript) = told("tools: [look]\nplanning: true\n").await;
    expect![[r#"
        1 planning {"items":[{"id":1,"status":"in-progress","title":"look"},{"id":2,"status":"not-started","title":"note"}],"todos":["look","note"],"version":1}
        1 planning {"items":[{"id":1,"status":"completed","title":"look"},{"id":2,"status":"not-started","title":"note"}],"todos":["look","note"],"version":2}
        1 step_complete {"description":"look","step_number":1,"total_steps":2}
    "#]].assert_eq(&told);
    assert!(transcript.contains("the plan has no step 9"), "{transcript}");
}

#[tokio::test]
async fn an_agent_without_planning_has_no_plan() {
    let (told, transcript) = told("tools: [look]\n").await;
    assert_eq!(told, "");
    assert!(transcript.contains("this agent makes no plans"), "{transcript}");
}
