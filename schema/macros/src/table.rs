//! The expansion of `#[table]`.

use proc_macro2::TokenStream;
use quote::quote;
use syn::ext::IdentExt as _;
use syn::meta::ParseNestedMeta;
use syn::parse::Parser as _;
use syn::spanned::Spanned as _;
use syn::{Attribute, Error, Expr, Field, Fields, Ident, ItemStruct, LitStr, Result};

use crate::doc_comment;

#[derive(Default)]
struct Declaration {
    name: Option<LitStr>,
    without_rowid: bool,
    shared: bool,
    indexes: Vec<TokenStream>,
    constraints: Vec<Expr>,
    triggers: Vec<Expr>,
}

impl Declaration {
    fn parse(arguments: TokenStream) -> Result<Declaration> {
        let mut declaration = Declaration::default();
        syn::meta::parser(|meta| declaration.take(&meta)).parse2(arguments)?;
        Ok(declaration)
    }

    fn take(&mut self, meta: &ParseNestedMeta<'_>) -> Result<()> {
        let path = &meta.path;
        if path.is_ident("name") {
            self.name = Some(meta.value()?.parse()?);
        } else if path.is_ident("without_rowid") {
            self.without_rowid = true;
        } else if path.is_ident("shared") {
            self.shared = true;
        } else if path.is_ident("constraint") {
            self.constraints.push(meta.value()?.parse()?);
        } else if path.is_ident("trigger") {
            self.triggers.push(meta.value()?.parse()?);
        } else if path.is_ident("index") || path.is_ident("unique") {
            let index = parse_index(meta, path.is_ident("unique"))?;
            self.indexes.push(index);
        } else {
            return Err(meta.error(
                "expected name, without_rowid, shared, index, unique, constraint or trigger",
            ));
        }
        Ok(())
    }
}

fn parse_index(meta: &ParseNestedMeta<'_>, unique: bool) -> Result<TokenStream> {
    let mut columns = Vec::new();
    let mut condition = quote!(None);
    meta.parse_nested_meta(|inner| {
        if inner.input.peek(syn::Token![=]) {
            let text: LitStr = inner.value()?.parse()?;
            condition = quote!(Some(#text));
        } else {
            columns.push(inner.path.require_ident()?.unraw().to_string());
        }
        Ok(())
    })?;
    Ok(quote!(::abide_schema::table::IndexSpec {
        columns: &[#(#columns),*],
        unique: #unique,
        condition: #condition,
    }))
}

#[derive(Default)]
struct Column {
    key: bool,
    unique: bool,
    scope: bool,
    omit_null: bool,
    references: Option<LitStr>,
}

impl Column {
    /// Parses and removes the `#[column]` attributes of a field.
    fn parse(field: &mut Field) -> Result<Column> {
        let mut column = Column::default();
        refuse_serde(&field.attrs)?;
        for attribute in field.attrs.iter().filter(|attribute| attribute.path().is_ident("column"))
        {
            attribute.parse_nested_meta(|meta| {
                if meta.path.is_ident("key") {
                    column.key = true;
                } else if meta.path.is_ident("unique") {
                    column.unique = true;
                } else if meta.path.is_ident("scope") {
                    column.scope = true;
                } else if meta.path.is_ident("omit_null") {
                    column.omit_null = true;
                } else if meta.path.is_ident("references") {
                    column.references = Some(meta.value()?.parse()?);
                } else {
                    return Err(meta.error("expected key, unique, scope, omit_null or references"));
                }
                Ok(())
            })?;
        }
        field.attrs.retain(|attribute| !attribute.path().is_ident("column"));
        if column.omit_null {
            field.attrs.push(syn::parse_quote!(
                #[serde(skip_serializing_if = "::std::option::Option::is_none")]
            ));
        }
        Ok(column)
    }
}

/// Refuses attributes that change the JSON of a row, because rows are also read from their columns.
fn refuse_serde(attributes: &[Attribute]) -> Result<()> {
    match attributes.iter().find(|attribute| attribute.path().is_ident("serde")) {
        Some(serde) => {
            let why =
                "a table has no `serde` attributes: a row in JSON has the names of its columns";
            Err(Error::new(serde.span(), why))
        }
        None => Ok(()),
    }
}

pub(crate) fn expand(arguments: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let declaration = Declaration::parse(arguments)?;
    let mut item: ItemStruct = syn::parse2(item)?;
    refuse_serde(&item.attrs)?;
    let span = item.span();
    let Fields::Named(fields) = &mut item.fields else {
        return Err(Error::new(span, "a table needs named fields: they are its columns"));
    };

    let mut specs = Vec::new();
    let mut keys = Vec::new();
    let mut names = Vec::<Ident>::new();
    for (at, field) in fields.named.iter_mut().enumerate() {
        let column = Column::parse(field)?;
        let name = field.ident.clone().expect("a named field has a name");
        if column.key {
            keys.push(at);
        }
        specs.push(column_spec(&name, field, &column));
        names.push(name);
    }
    if keys.is_empty() {
        return Err(Error::new(span, "a table needs a primary key: #[column(key)] on a field"));
    }

    let table = declaration
        .name
        .ok_or_else(|| Error::new(span, "a table needs a name: #[table(name = \"…\")]"))?;
    let doc = doc_comment(&item.attrs);
    let type_name = &item.ident;
    let without_rowid = declaration.without_rowid;
    let shared = declaration.shared;
    let indexes = declaration.indexes;
    let constraints = declaration.constraints;
    let triggers = declaration.triggers;
    let cells = cells(&names);
    let deserialize = deserialize(type_name, &names);
    Ok(quote! {
        #[derive(Clone, Debug, PartialEq)]
        #[derive(::abide_schema::private::serde::Serialize)]
        #[derive(::abide_schema::private::schemars::JsonSchema)]
        #[serde(crate = "::abide_schema::private::serde")]
        #[schemars(crate = "::abide_schema::private::schemars")]
        #item

        #deserialize

        impl ::abide_schema::table::Table for #type_name {
            const SPEC: &'static ::abide_schema::table::TableSpec =
                &::abide_schema::table::TableSpec {
                    name: #table,
                    doc: #doc,
                    columns: &[#(#specs),*],
                    key: &[#(#keys),*],
                    without_rowid: #without_rowid,
                    shared: #shared,
                    indexes: &[#(#indexes),*],
                    constraints: &[#(#constraints),*],
                    triggers: &[#(#triggers),*],
                };

            #cells
        }
    })
}

/// Generates the conversions to and from cells.
fn cells(names: &[Ident]) -> TokenStream {
    let positions = 0..names.len();
    quote! {
        fn into_row(self) -> ::std::vec::Vec<::abide_schema::value::Value> {
            ::std::vec![#(::abide_schema::table::Cell::into_value(self.#names)),*]
        }

        fn from_row(
            row: &[::abide_schema::value::Value],
        ) -> ::std::result::Result<Self, ::abide_schema::table::WrongCell> {
            Ok(Self {
                #(#names: ::abide_schema::table::Cell::from_value(&row[#positions])?),*
            })
        }
    }
}

/// Generates `Deserialize`.
fn deserialize(type_name: &Ident, columns: &[Ident]) -> TokenStream {
    let positions = 0..columns.len();
    quote! {
        impl<'de> ::abide_schema::private::serde::Deserialize<'de> for #type_name {
            fn deserialize<D: ::abide_schema::private::serde::Deserializer<'de>>(
                deserializer: D,
            ) -> ::std::result::Result<Self, D::Error> {
                // It does not depend on the deserializer, so it is compiled once.
                fn read(
                    mut row: ::abide_schema::row_values::RowValues,
                ) -> ::std::result::Result<#type_name, ::std::string::String> {
                    Ok(#type_name { #(#columns: row.take(#positions)?),* })
                }

                let table = <Self as ::abide_schema::table::Table>::SPEC;
                let row = ::abide_schema::row_values::RowValues::deserialize(table, deserializer)?;
                read(row).map_err(::abide_schema::private::serde::de::Error::custom)
            }
        }
    }
}

fn column_spec(name: &Ident, field: &Field, column: &Column) -> TokenStream {
    let name = name.unraw().to_string();
    let doc = doc_comment(&field.attrs);
    let field_type = &field.ty;
    let unique = column.unique;
    let scope = column.scope;
    let references = match &column.references {
        Some(target) => quote!(Some(#target)),
        None => quote!(None),
    };
    quote!(::abide_schema::table::ColumnSpec {
        name: #name,
        doc: #doc,
        kind: <#field_type as ::abide_schema::table::Cell>::KIND,
        nullable: <#field_type as ::abide_schema::table::Cell>::NULLABLE,
        json: <#field_type as ::abide_schema::table::Cell>::JSON,
        one_of: <#field_type as ::abide_schema::table::Cell>::ONE_OF,
        references: #references,
        unique: #unique,
        scope: #scope,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_of_serde_are_refused() {
        let declared = |item| expand(quote!(name = "parts"), item).map(drop);
        assert!(
            declared(quote!(
                struct Part {
                    #[column(key)]
                    id: String,
                }
            ))
            .is_ok()
        );
        let of_struct = quote!(
            #[serde(rename_all = "camelCase")]
            struct Part {
                #[column(key)]
                id: String,
            }
        );
        let of_column = quote!(
            struct Part {
                #[column(key)]
                #[serde(rename = "Id")]
                id: String,
            }
        );
        for item in [of_struct, of_column] {
            let why = declared(item).expect_err("it is refused").to_string();
            assert!(why.starts_with("a table has no `serde` attributes"), "{why}");
        }
    }
}
