//! The paths of HTTP+JSON below `/a2a/{agent}/`: those of 1.0, and below `v1/` those of 0.3.

use axum::http::Method;

use super::operations::Operation;

/// Returns the operation of a path, and the ids in it.
pub(super) fn operation<'a>(method: &Method, path: &'a str) -> Option<(Operation, PathIds<'a>)> {
    match path.strip_prefix("v1/") {
        None => route(method, path),
        Some("card") if method == Method::GET => {
            Some((Operation::GetExtendedAgentCard, Vec::new()))
        }
        // 0.3 has no list, and its extended card is `card`.
        Some("tasks" | "extendedAgentCard") => None,
        Some(path) => route(method, path),
    }
}

/// Parameters in a path.
pub(super) type PathIds<'a> = Vec<(&'static str, &'a str)>;

/// Returns the operation of a path, and the ids in it.
fn route<'a>(method: &Method, rest: &'a str) -> Option<(Operation, PathIds<'a>)> {
    let is_get = method == Method::GET;
    let is_post = method == Method::POST;
    match rest {
        "message:send" if is_post => return Some((Operation::SendMessage, Vec::new())),
        "message:stream" if is_post => {
            return Some((Operation::SendStreamingMessage, Vec::new()));
        }
        "extendedAgentCard" if is_get => {
            return Some((Operation::GetExtendedAgentCard, Vec::new()));
        }
        "tasks" if is_get => return Some((Operation::ListTasks, Vec::new())),
        _ => {}
    }
    let id = rest.strip_prefix("tasks/").filter(|id| !id.is_empty())?;
    if let Some((task_id, config)) = id.split_once("/pushNotificationConfigs") {
        return route_of_push_config(method, task_id, config);
    }
    if let Some(id) = id.strip_suffix(":cancel").filter(|_| is_post) {
        return Some((Operation::CancelTask, vec![("id", id)]));
    }
    // 1.0.0 has GET, 1.0.1 has POST.
    if let Some(id) = id.strip_suffix(":subscribe").filter(|_| is_get || is_post) {
        return Some((Operation::SubscribeToTask, vec![("id", id)]));
    }
    is_get.then(|| (Operation::GetTask, vec![("id", id)]))
}

/// Returns the operation on the configurations of a task, or on one of them.
fn route_of_push_config<'a>(
    method: &Method,
    task_id: &'a str,
    config: &'a str,
) -> Option<(Operation, PathIds<'a>)> {
    let mut ids = vec![("taskId", task_id)];
    let operation = match config.strip_prefix('/').filter(|id| !id.is_empty()) {
        None if !config.trim_matches('/').is_empty() => return None,
        None if method == Method::POST => Operation::CreatePushConfig,
        None if method == Method::GET => Operation::ListPushConfigs,
        Some(id) => {
            ids.push(("id", id));
            match *method {
                Method::GET => Operation::GetPushConfig,
                Method::DELETE => Operation::DeletePushConfig,
                _ => return None,
            }
        }
        None => return None,
    };
    Some((operation, ids))
}
