//! `#[table]`, `#[reducer]` and `#[derive(TextEnum)]`: one declaration from which everything else is derived.
//!
//! It changes when the syntax of table and reducer declarations changes. The output names only
//! `::abide_schema` and contains no logic of its own.
//!
//! Each macro exists twice: a package that depends only on the crate `abide` cannot name `::abide_schema`. The
//! `facade_` macros, which `abide` re-exports, produce the same output with `::abide::schema` in its place.

mod facade;
mod reducer;
mod table;
mod text_enum;

use proc_macro::TokenStream;

/// Turns a struct into a table: DDL, row type, column metadata and JSON Schema.
///
/// ```text
/// /// What one row is.
/// #[table(name = "parcels", index(session_id, status), unique(tracking_no))]
/// pub struct Parcel {
///     /// What the column means.
///     #[column(key)]
///     pub id: String,
///     #[column(references = "sessions(id)")]
///     pub session_id: String,
///     pub tracking_no: Option<String>,
///     pub status: ParcelStatus, // a #[derive(TextEnum)]
/// }
/// ```
///
/// On the struct: `name`, `without_rowid`, `shared`, `index(columns…)`, `unique(columns…)`, each of these two
/// optionally with `where = "condition"`, `constraint = "SQL"`, `trigger = SQL_CONST`. On a field:
/// `#[column(key)]`, `#[column(unique)]`, `#[column(references = "table(column)")]`, `#[column(scope)]`,
/// `#[column(omit_null)]` (a row in JSON omits the column if it is null: an event commits to its result, so a column that was added
/// to an existing table must not change the results of earlier events).
/// The database assigns a single integer key: insert 0. Attributes of `serde` are refused: a row in JSON has the names of
/// its columns.
#[proc_macro_attribute]
pub fn table(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expand(table::expand(arguments.into(), item.into()))
}

/// Turns a function into a reducer: its parameters after the context are the call's arguments.
///
/// ```text
/// /// Ships a parcel.
/// #[reducer]
/// pub fn ship(ctx: &mut Context<'_>, id: String, express: Option<bool>) -> Result<Parcel, Abort> { … }
/// ```
///
/// `#[reducer(roles(app, agent))]` names the built-in roles that may call it: `app`, `agent`, `worker`, `supervisor`;
/// `admin` may call every reducer. The default is `roles(app)`. `roles(admin)` is for reducers that manage permissions: a
/// custom role may call them only if it names them.
///
/// Register it with `Module::reducer(ship::definition())`. The caller may omit a parameter of type `Option`
/// and may pass null for one of type `Nullable`; all others are required. Arguments that are not parameters
/// are refused.
///
/// The arguments are also a struct, named after the function (`Ship`), for typed calls by a client:
/// `abide.call(Ship { id, express: None })`, or `Ship::new(id).express(true)`. The types of all arguments implement
/// `Clone`, `Debug`, `Serialize`, `Deserialize` and `JsonSchema`. A doc comment on a parameter becomes the
/// documentation of its field and its method.
///
/// An id parameter is declared with its table: `#[id(Parcel)] id: String` for an existing row, `#[id(new, Parcel)]` for
/// the id that the caller chooses for a new row. The function receives the stored id: for a caller with a scope it is
/// in the namespace of that scope. With `#[id(derived, Parcel)]` the function itself checks an id in the reserved form.
#[proc_macro_attribute]
pub fn reducer(options: TokenStream, item: TokenStream) -> TokenStream {
    expand(reducer::expand(options.into(), item.into()))
}

/// Makes an enum of unit variants a text column: each variant is stored as its name in snake case,
/// and the database rejects any other text.
#[proc_macro_derive(TextEnum)]
pub fn text_enum(item: TokenStream) -> TokenStream {
    expand(text_enum::expand(item.into()))
}

/// The form of [`macro@table`] that the crate `abide` exports.
#[doc(hidden)]
#[proc_macro_attribute]
pub fn facade_table(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expand(table::expand(arguments.into(), item.into()).map(facade::with_facade_path))
}

/// The form of [`macro@reducer`] that the crate `abide` exports.
#[doc(hidden)]
#[proc_macro_attribute]
pub fn facade_reducer(options: TokenStream, item: TokenStream) -> TokenStream {
    expand(reducer::expand(options.into(), item.into()).map(facade::with_facade_path))
}

/// The form of `TextEnum` that the crate `abide` exports.
#[doc(hidden)]
#[proc_macro_derive(FacadeTextEnum)]
pub fn facade_text_enum(item: TokenStream) -> TokenStream {
    expand(text_enum::expand(item.into()).map(facade::with_facade_path))
}

fn expand(result: syn::Result<proc_macro2::TokenStream>) -> TokenStream {
    result.unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Returns the doc comment of an item as one text.
fn doc_comment(attributes: &[syn::Attribute]) -> String {
    let lines = attributes.iter().filter_map(|attribute| match &attribute.meta {
        syn::Meta::NameValue(pair) if pair.path.is_ident("doc") => match &pair.value {
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => {
                Some(text.value().trim().to_owned())
            }
            _ => None,
        },
        _ => None,
    });
    lines.collect::<Vec<_>>().join("\n").trim().to_owned()
}
