//! From a text and parameters to a binding. A text is parsed once and bound many times.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use abide_schema::{Code, Refusal, Value, limits};
use serde_json::{Map, Value as JsonValue};
use sqlite3_parser::ast::{Cmd, Stmt};
use sqlite3_parser::lexer::sql::Parser;
use sqlite3_parser::{Bump, FallibleIterator as _};

use crate::catalog::Catalog;
use crate::identifier::quoted;
use crate::plan::lex;
use crate::plan::lowering::Lowering;
use crate::plan::principal::QueryPrincipal;
use crate::plan::query::{Query, Slot};
use crate::template::{Binding, Template};

/// Entries of one generation of a cache. Two generations are kept, so texts in use survive any
/// number of texts that are bound only once.
const GENERATION: usize = 1_024;

/// Plans queries. Shared by all threads.
#[derive(Debug)]
pub struct Planner {
    catalog: Arc<Catalog>,
    known: Mutex<PlanCaches>,
}

#[derive(Debug, Default)]
struct PlanCaches {
    texts: Cache<String, Arc<Parsed>>,
    /// Plans for restricted callers: by outlook, mode and text.
    bounded: Cache<String, Arc<Parsed>>,
    templates: Cache<String, Arc<Template>>,
}

/// A planned text: its template and the values of the template's parameters.
#[derive(Debug)]
struct Parsed {
    template: Arc<Template>,
    slots: Vec<Slot>,
    /// The caller's parameters, including those in unused parts of the text.
    names: BTreeSet<String>,
    /// Whether it contains LIKE or GLOB.
    matches: bool,
}

/// A text of a restricted caller.
#[derive(Clone, Copy)]
struct RestrictedQuery<'a> {
    principal: &'a QueryPrincipal,
    /// Whether it runs only once.
    once: bool,
}

impl RestrictedQuery<'_> {
    /// Returns the cache key of a text.
    fn place(&self, sql: &str) -> String {
        format!("{}\0{}\0{sql}", self.principal.authorized_views.number, u8::from(self.once))
    }
}

impl Planner {
    /// Creates a planner for the tables and views of a catalog.
    #[must_use]
    pub fn new(catalog: Arc<Catalog>) -> Planner {
        Planner { catalog, known: Mutex::default() }
    }

    /// Binds a query to its parameters, by name without the sigil or by number.
    ///
    /// # Errors
    /// `bad_sql` if it is not a SELECT of known tables and columns, `unsupported_sql` if
    /// it cannot be live, `limit_exceeded` if it is too long or nests too deeply, `bad_arguments`
    /// for missing, superfluous or invalid parameters.
    pub fn bind(&self, sql: &str, params: &Map<String, JsonValue>) -> Result<Binding, Refusal> {
        let parsed = self.parsed(sql)?;
        let values = parsed.values(params, None)?;
        Ok(Binding::new(Arc::clone(&parsed.template), values, None, Vec::new()))
    }

    /// Binds a query of a restricted caller, which sees only the rows and columns that its outlook
    /// shows.
    ///
    /// # Errors
    /// As [`Planner::bind`].
    pub fn bind_within(
        &self,
        sql: &str,
        params: &Map<String, JsonValue>,
        principal: &QueryPrincipal,
    ) -> Result<Binding, Refusal> {
        self.bind_bounded(sql, params, RestrictedQuery { principal, once: false })
    }

    /// Binds a query of a restricted caller that runs once. Only [`Binding::snapshot_sql`] may be
    /// used.
    ///
    /// # Errors
    /// As [`Planner::bind`]; fewer queries are `unsupported_sql`.
    pub fn bind_once(
        &self,
        sql: &str,
        params: &Map<String, JsonValue>,
        principal: &QueryPrincipal,
    ) -> Result<Binding, Refusal> {
        let bound = self.bind_bounded(sql, params, RestrictedQuery { principal, once: true });
        if bound.as_ref().is_ok_and(Binding::chooses)
            && let Ok(live) = self.bind_within(sql, params, principal)
        {
            return Ok(live);
        }
        bound.map_err(|mut refusal| {
            if refusal.code == Code::UnsupportedSql {
                let output = "cannot be used by a caller with restricted visibility";
                refusal.detail = refusal.detail.replace("cannot be live", output);
                refusal.hint = None;
            }
            refusal
        })
    }

    /// Binds a query of an unrestricted caller that runs once, if it must run as planned to show
    /// what it shows when live. All other texts run as they are written.
    #[must_use]
    pub fn bind_chosen(&self, sql: &str, params: &Map<String, JsonValue>) -> Option<Binding> {
        self.bind(sql, params).ok().filter(Binding::chooses)
    }

    /// Binds a text from the cache, in constant time, for threads that must not block.
    ///
    /// # Errors
    /// As [`Planner::bind`].
    pub fn bind_known(
        &self,
        sql: &str,
        params: &Map<String, JsonValue>,
        principal: Option<&QueryPrincipal>,
    ) -> Option<Result<Binding, Refusal>> {
        let parsed = match principal {
            Some(principal) => {
                let place = RestrictedQuery { principal, once: false }.place(sql);
                self.lock().bounded.get(&place)
            }
            None => self.lock().texts.get(sql),
        }?;
        let views = match principal {
            Some(principal) => self.known_views(&parsed, principal)?,
            None => Vec::new(),
        };
        let principal_key = principal.map(QueryPrincipal::principal_key);
        Some(
            parsed.values(params, principal).map(|values| {
                Binding::new(Arc::clone(&parsed.template), values, principal_key, views)
            }),
        )
    }

    /// Returns the caller's view of each table that a text names, if all of them are cached.
    fn known_views(&self, parsed: &Parsed, principal: &QueryPrincipal) -> Option<Vec<Binding>> {
        let texts = self.view_texts(parsed);
        let mut known = self.lock();
        texts
            .iter()
            .map(|text| {
                let place = RestrictedQuery { principal, once: false }.place(text);
                known.bounded.get(&place)?.view(principal).ok()
            })
            .collect()
    }

    /// Returns the caller's view of each table that a text names.
    fn views(&self, parsed: &Parsed, principal: &QueryPrincipal) -> Result<Vec<Binding>, Refusal> {
        let bounded = RestrictedQuery { principal, once: false };
        let texts = self.view_texts(parsed);
        texts.iter().map(|text| self.parsed_bounded(text, bounded)?.view(principal)).collect()
    }

    fn view_texts(&self, parsed: &Parsed) -> Vec<String> {
        let tables = parsed.template.named_tables().into_iter();
        tables
            .map(|table| format!("SELECT * FROM {}", quoted(self.catalog.table(table).name)))
            .collect()
    }

    fn bind_bounded(
        &self,
        sql: &str,
        params: &Map<String, JsonValue>,
        bounded: RestrictedQuery,
    ) -> Result<Binding, Refusal> {
        let parsed = self.parsed_bounded(sql, bounded)?;
        let values = parsed.values(params, Some(bounded.principal))?;
        let principal_key = bounded.principal.principal_key();
        // A query that runs once is affected by no commit.
        let views = if bounded.once { Vec::new() } else { self.views(&parsed, bounded.principal)? };
        Ok(Binding::new(Arc::clone(&parsed.template), values, Some(principal_key), views))
    }

    fn parsed_bounded(&self, sql: &str, bounded: RestrictedQuery) -> Result<Arc<Parsed>, Refusal> {
        let place = bounded.place(sql);
        let known = self.lock().bounded.get(&place);
        if let Some(known) = known {
            return Ok(known);
        }
        let parsed = self.plan_text(sql, Some(bounded))?;
        self.lock().bounded.insert(place, Arc::clone(&parsed));
        Ok(parsed)
    }

    /// Binds a query for explanation only: omitted parameters are NULL.
    ///
    /// # Errors
    /// As [`Planner::bind`].
    pub fn bind_some(
        &self,
        sql: &str,
        params: &Map<String, JsonValue>,
        principal: Option<&QueryPrincipal>,
    ) -> Result<Binding, Refusal> {
        let parsed = match principal {
            Some(principal) => {
                self.parsed_bounded(sql, RestrictedQuery { principal, once: false })?
            }
            None => self.parsed(sql)?,
        };
        let mut all = params.clone();
        for name in &parsed.names {
            all.entry(name).or_insert(JsonValue::Null);
        }
        let values = parsed.values(&all, principal)?;
        let principal_key = principal.map(QueryPrincipal::principal_key);
        Ok(Binding::new(Arc::clone(&parsed.template), values, principal_key, Vec::new()))
    }

    fn parsed(&self, sql: &str) -> Result<Arc<Parsed>, Refusal> {
        if let Some(known) = self.lock().texts.get(sql) {
            return Ok(known);
        }
        let parsed = self.plan_text(sql, None)?;
        self.lock().texts.insert(sql.to_owned(), Arc::clone(&parsed));
        Ok(parsed)
    }

    fn plan_text(
        &self,
        sql: &str,
        bounded: Option<RestrictedQuery>,
    ) -> Result<Arc<Parsed>, Refusal> {
        let query = parse(&self.catalog, sql, bounded)?;
        let names = query
            .slots
            .iter()
            .filter_map(|slot| match slot {
                Slot::Caller(name) => Some(name.clone()),
                Slot::Literal(_) | Slot::Principal(_) => None,
            })
            .collect();
        let (template, slots) = Template::compile(&self.catalog, query)?;
        if !bounded.is_some_and(|bounded| bounded.once) {
            template.check_operations()?;
        }
        let mut known = self.lock();
        let template = match known.templates.get(&**template.text()) {
            Some(template) => template,
            None => {
                let template = Arc::new(template);
                known.templates.insert(template.text().to_string(), Arc::clone(&template));
                template
            }
        };
        let matches = ["LIKE", "GLOB"].iter().any(|word| template.text().contains(word));
        Ok(Arc::new(Parsed { template, slots, names, matches }))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, PlanCaches> {
        // A panic in another thread cannot leave a cache of immutable values inconsistent.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Resolves a text.
fn parse(catalog: &Catalog, sql: &str, bounded: Option<RestrictedQuery>) -> Result<Query, Refusal> {
    let written = lex::columns_as_written(sql)?;
    let numbered = lex::number_parameters(sql)?;
    let bump = Bump::new();
    let mut parser = Parser::new(&bump, numbered.text.as_bytes());
    let command = parser.next().map_err(|error| lex::refusal(sql, &error))?;
    match &command {
        Some(Cmd::Stmt(Stmt::Select(select))) => {
            let mut lower = Lowering::new(catalog);
            if let Some(RestrictedQuery { principal, once }) = bounded {
                lower.principal = Some(principal);
                lower.once = once;
            }
            lower.declare(&numbered.parameters);
            Query::resolve(lower, select, &written)
        }
        Some(_) => Err(no_select(bounded.is_some_and(|bounded| bounded.once))),
        None => Err(Refusal::new(Code::BadSql, "the statement is empty").hint("send one SELECT")),
    }
}

fn no_select(once: bool) -> Refusal {
    if once {
        return Refusal::new(Code::BadSql, "the statement is not read-only")
            .hint("one SELECT, VALUES or WITH; to change data, call a reducer");
    }
    Refusal::new(Code::BadSql, "only a SELECT can be watched")
        .hint("to change data, call a reducer")
}

impl Parsed {
    /// Binds a text without parameters of the caller.
    fn view(&self, principal: &QueryPrincipal) -> Result<Binding, Refusal> {
        let values = self.values(&Map::new(), Some(principal))?;
        let principal_key = principal.principal_key();
        Ok(Binding::new(Arc::clone(&self.template), values, Some(principal_key), Vec::new()))
    }

    fn values(
        &self,
        params: &Map<String, JsonValue>,
        principal: Option<&QueryPrincipal>,
    ) -> Result<Vec<Value>, Refusal> {
        for name in &self.names {
            let json = params.get(name).ok_or_else(|| {
                bad_arguments(format!("parameter {name} is missing"))
                    .hint(format!("pass it in params: {{\"{name}\": …}}"))
            })?;
            Value::from_json(json).map_err(|what| {
                bad_arguments(format!("parameter {name} is {what}, which is not a valid value"))
            })?;
        }
        if let Some(name) = params.keys().find(|name| !self.names.contains(*name)) {
            return Err(bad_arguments(format!("the query has no parameter {name}"))
                .hint("omit the sigil: sid for :sid, 1 for ?1"));
        }
        let values: Vec<Value> = self
            .slots
            .iter()
            .map(|slot| match slot {
                Slot::Literal(value) => value.clone(),
                Slot::Caller(name) => Value::from_json(&params[name]).expect("it was just read"),
                Slot::Principal(name) => {
                    principal.expect("only a bounded text names a viewer's values").value(name)
                }
            })
            .collect();
        // Without this check, a pattern that is too long would fail only if there is a row to
        // match.
        let max = limits::PATTERN_BYTES;
        let has_long_text =
            values.iter().any(|value| matches!(value, Value::Text(text) if text.len() > max));
        if principal.is_some() && self.matches && has_long_text {
            let detail = format!("a LIKE or GLOB operand is longer than {max} bytes");
            return Err(Refusal::new(Code::LimitExceeded, detail));
        }
        Ok(values)
    }
}

fn bad_arguments(detail: String) -> Refusal {
    Refusal::new(Code::BadArguments, detail)
}

/// A bounded map that drops entries not used in the last generation.
#[derive(Debug)]
struct Cache<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
}

impl<K, V> Default for Cache<K, V> {
    fn default() -> Cache<K, V> {
        Cache { young: HashMap::new(), old: HashMap::new() }
    }
}

impl<K: Hash + Eq, V: Clone> Cache<K, V> {
    fn get<Q>(&mut self, key: &Q) -> Option<V>
    where
        K: std::borrow::Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        if let Some(value) = self.young.get(key) {
            return Some(value.clone());
        }
        let (key, value) = self.old.remove_entry(key)?;
        self.insert(key, value.clone());
        Some(value)
    }

    fn insert(&mut self, key: K, value: V) {
        if self.young.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }
}
