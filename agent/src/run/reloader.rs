//! Keeps a runtime up to date with its folder: `abide.yaml` and the definitions are read again when they change.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use abide_client::Error;
use tokio::sync::watch;

use crate::catalog::agents::Problem;
use crate::catalog::project_reload::{FolderChanges, LiveProject, ProjectReload};
use crate::run::context::RuntimeContext;
use crate::run::registrar::{Registrar, Registration};

/// A function that receives what has changed in a folder.
pub(crate) type OnChange = Box<dyn Fn(&FolderChanges) + Send + Sync>;

/// Reads the folder of a runtime again when it has changed.
pub(crate) struct Reloader {
    context: Arc<RuntimeContext>,
    registrar: Arc<Registrar>,
    /// The configuration, if it is read again when it changes.
    project: tokio::sync::Mutex<Option<ProjectReload>>,
    /// The problem of the configuration at its last reading.
    config_problem: Mutex<Option<Problem>>,
    problems: watch::Sender<Vec<Problem>>,
    /// Whether the last reading had errors.
    is_broken: AtomicBool,
    /// Receives what has changed; without it, it is logged.
    on_change: Option<OnChange>,
}

impl Reloader {
    pub(crate) fn new(
        context: Arc<RuntimeContext>,
        registrar: Arc<Registrar>,
        project: Option<ProjectReload>,
        on_change: Option<OnChange>,
    ) -> Reloader {
        Reloader {
            context,
            registrar,
            project: tokio::sync::Mutex::new(project),
            config_problem: Mutex::default(),
            problems: watch::Sender::new(Vec::new()),
            is_broken: AtomicBool::new(false),
            on_change,
        }
    }

    /// Returns the invalid files of the folder at its last reading.
    pub(crate) fn problems(&self) -> watch::Receiver<Vec<Problem>> {
        self.problems.subscribe()
    }

    /// Registers the tools and the definitions. Returns the invalid files.
    ///
    /// # Errors
    /// [`Error`] of a call.
    pub(crate) async fn register(&self) -> Result<Vec<Problem>, Error> {
        let Registration { problems, .. } = self.registrar.register().await?;
        Ok(self.publish(problems))
    }

    /// Publishes the problems of the definitions and of the configuration, and returns them.
    fn publish(&self, mut problems: Vec<Problem>) -> Vec<Problem> {
        problems.extend(self.config_problem().clone());
        self.problems.send_replace(problems.clone());
        problems
    }

    /// Reads the configuration and the definitions again if anything has changed.
    pub(crate) async fn reload(&self) {
        let report = self.reload_config().await;
        if report.is_none() && self.registrar.is_current() {
            return;
        }
        let mut report = report.unwrap_or_default();
        match self.registrar.register().await {
            Ok(Registration { problems, change }) => {
                self.publish(problems);
                report.changes.extend(change);
                let config = self.config_problem().clone();
                for problem in config.into_iter().chain(self.check().await) {
                    if !report.problems.contains(&problem) {
                        report.problems.push(problem);
                    }
                }
                let is_broken = report.problems.iter().any(|it| !it.error.is_warning());
                let was_broken = self.is_broken.swap(is_broken, Ordering::Relaxed);
                if was_broken && !is_broken && report.changes.is_empty() && report.notes.is_empty()
                {
                    report.notes.push("the definitions are valid again, and unchanged".to_owned());
                }
            }
            Err(error) => tracing::warn!(
                name: "definitions_not_registered",
                error = format_args!("{error:#}"),
                "definitions could not be registered"
            ),
        }
        if report.is_empty() {
            return;
        }
        if let Some(on_change) = &self.on_change {
            return on_change(&report);
        }
        for problem in &report.problems {
            tracing::warn!(name: "definition_invalid", "{problem}");
        }
        for note in &report.notes {
            tracing::warn!(name: "definition_warning", "{note}");
        }
    }

    /// Reads the configuration again; `None` if it has not changed.
    async fn reload_config(&self) -> Option<FolderChanges> {
        let mut project = self.project.lock().await;
        let project = project.as_mut()?;
        let context = &self.context;
        let live = LiveProject {
            tools: context.tools.clone(),
            models: context.models.clone(),
            sandbox: context.sandbox.clone(),
            catalog: Arc::clone(self.registrar.catalog()),
        };
        let report = project.refresh(&live).await?;
        *self.config_problem() = report.problems.first().cloned();
        Some(report)
    }

    /// Returns the problems that `abide agent check` reports, with the configuration that is in effect.
    async fn check(&self) -> Vec<Problem> {
        let project = self.project.lock().await;
        let mut problems = match &*project {
            Some(project) => project.missing_programs(self.registrar.catalog()),
            None => Vec::new(),
        };
        drop(project);
        let catalog = Arc::clone(self.registrar.catalog());
        let models = self.context.models.get();
        let environment = self.context.environment.clone();
        // It reads files, and waits for stores of prompts.
        let check = tokio::task::spawn_blocking(move || catalog.check(&models, &environment));
        problems.extend(check.await.unwrap_or_default());
        problems
    }

    fn config_problem(&self) -> MutexGuard<'_, Option<Problem>> {
        self.config_problem.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
