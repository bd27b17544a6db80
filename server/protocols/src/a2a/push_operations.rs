//! The operations on configurations of push notifications.

use abide_schema::wire::BatchCall;
use abide_schema::{Code, Value};
use abide_server::port::rows::deny_hidden;
use serde_json::{Map, Value as JsonValue, json};

use super::error::{A2aError, A2aResult, Kind};
use super::operations::Peer;
use super::params::required_text;
use super::push::{PushConfig, sender};
use crate::start::{RunRow, params};

impl Peer {
    pub(super) async fn create_push_config(self, given: &JsonValue) -> A2aResult<JsonValue> {
        let run = self.find(required_text(given, "taskId")?).await?;
        let task_id = self.ids(&run).task;
        let config = PushConfig::parse(given, sender(&self.app)?, &task_id)?;
        let BatchCall { reducer, args } = config.call(&run.id, None);
        self.app.engine.call(self.by(), &reducer, &args, None).await?;
        self.push_config(&run, &config.name).await
    }

    pub(super) async fn get_push_config(self, given: &JsonValue) -> A2aResult<JsonValue> {
        sender(&self.app)?;
        let run = self.find(required_text(given, "taskId")?).await?;
        self.push_config(&run, required_text(given, "id")?).await
    }

    /// Returns the configurations of a task. There are few, so they are one page.
    pub(super) async fn list_push_configs(self, given: &JsonValue) -> A2aResult<JsonValue> {
        sender(&self.app)?;
        let run = self.find(required_text(given, "taskId")?).await?;
        let configs = self.push_configs(&run, None).await?;
        Ok(json!({"configs": configs, "nextPageToken": ""}))
    }

    /// Deletes a configuration. One that does not exist is not an error.
    pub(super) async fn delete_push_config(self, given: &JsonValue) -> A2aResult<JsonValue> {
        sender(&self.app)?;
        let run = self.find(required_text(given, "taskId")?).await?;
        let id = format!("{}~{}", run.id, required_text(given, "id")?);
        match self.app.engine.call(self.by(), "delete_webhook", &json!({"id": id}), None).await {
            Err(refusal) if refusal.code != Code::NotFound => Err(refusal.into()),
            _ => Ok(json!({})),
        }
    }

    async fn push_config(&self, run: &RunRow, name: &str) -> A2aResult<JsonValue> {
        let found = self.push_configs(run, Some(name)).await?.pop();
        found.ok_or_else(|| {
            let task_id = self.ids(run).task;
            let message = format!("task {task_id} has no push notification configuration {name}");
            A2aError::new(Kind::TaskNotFound, message)
        })
    }

    /// Returns the configurations of a task, without their secrets.
    async fn push_configs(&self, run: &RunRow, name: Option<&str>) -> A2aResult<Vec<JsonValue>> {
        let sql = "SELECT name, url, scheme FROM webhooks \
                   WHERE run_id = :run AND (:name IS NULL OR name = :name) ORDER BY name";
        let params: Map<String, JsonValue> =
            params([("run", json!(run.id)), ("name", json!(name))]);
        let found =
            self.app.engine.query(self.by(), sql, &params, None).await.map_err(deny_hidden)?;
        let task_id = self.ids(run).task;
        let configs = found.rows.iter().filter_map(|row| match &**row {
            [Value::Text(name), Value::Text(url), scheme] => {
                let mut config = json!({"id": &**name, "taskId": task_id, "url": &**url});
                if let Value::Text(scheme) = scheme {
                    config["authentication"] = json!({"scheme": &**scheme});
                }
                Some(config)
            }
            _ => None,
        });
        Ok(configs.collect())
    }
}
