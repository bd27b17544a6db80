//! The expansion of `#[reducer]`.

use proc_macro2::TokenStream;
use quote::{ToTokens as _, quote};
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned as _;
use syn::{Error, FnArg, Ident, ItemFn, Pat, Result, ReturnType, Type};

use crate::doc_of;

/// One argument of the call: a parameter after the context.
struct Argument {
    name: Ident,
    kind: Type,
    optional: bool,
    /// Its `#[id(…)]` attribute.
    id: Option<Id>,
}

/// `#[id(Row)]`: the id of an existing row. `#[id(new, Row)]`: an id chosen by the caller for a new row.
/// `#[id(derived, Row)]`: like `new`, and the reducer itself checks an id in the reserved form.
struct Id {
    naming: Ident,
    row: Type,
}

impl Parse for Id {
    fn parse(input: ParseStream<'_>) -> Result<Id> {
        let row: Type = input.parse()?;
        if input.is_empty() {
            return Ok(Id { naming: Ident::new("Existing", row.span()), row });
        }
        input.parse::<syn::Token![,]>()?;
        let naming = match row.to_token_stream().to_string().as_str() {
            "new" => "New",
            "derived" => "Derived",
            _ => {
                return Err(Error::new(
                    row.span(),
                    "#[id(Row)], #[id(new, Row)] or #[id(derived, Row)]",
                ));
            }
        };
        Ok(Id { naming: Ident::new(naming, row.span()), row: input.parse()? })
    }
}

pub(crate) fn expand(item: TokenStream) -> Result<TokenStream> {
    let mut item: ItemFn = syn::parse2(item)?;
    let mut parameters = item.sig.inputs.iter();
    if parameters.next().is_none() {
        return Err(Error::new(item.sig.span(), "a reducer's first parameter is its context"));
    }
    let arguments = parameters.map(argument).collect::<Result<Vec<_>>>()?;
    let ReturnType::Type(_, answer) = &item.sig.output else {
        return Err(Error::new(item.sig.span(), "a reducer returns a Result<_, Abort>"));
    };

    let takes = match arguments.as_slice() {
        [] => "no arguments".to_owned(),
        arguments => {
            let names = arguments.iter().map(|argument| {
                format!("{}{}", argument.name, if argument.optional { "?" } else { "" })
            });
            names.collect::<Vec<_>>().join(", ")
        }
    };
    for parameter in &mut item.sig.inputs {
        if let FnArg::Typed(parameter) = parameter {
            parameter.attrs.retain(|attribute| !attribute.path().is_ident("id"));
        }
    }
    let (name, visibility, doc) = (&item.sig.ident, &item.vis, doc_of(&item.attrs));
    let text = name.to_string();
    let names: Vec<&Ident> = arguments.iter().map(|argument| &argument.name).collect();
    let kinds: Vec<&Type> = arguments.iter().map(|argument| &argument.kind).collect();
    let module_doc = format!("The registered form of the reducer [`{text}`](fn@{text}).");
    let (call, decode) = (call(name, &arguments, answer), decode(&text, &takes));
    let definition = definition(&text, &doc, answer);
    Ok(quote! {
        #item

        #[doc = #module_doc]
        #visibility mod #name {
            use super::*;

            #[derive(::abide_schema::private::serde::Deserialize)]
            #[derive(::abide_schema::private::schemars::JsonSchema)]
            #[serde(crate = "::abide_schema::private::serde", deny_unknown_fields)]
            #[schemars(crate = "::abide_schema::private::schemars")]
            struct Arguments {
                #(#names: #kinds,)*
            }

            #call
            #decode
            #definition
        }
    })
}

/// Generates the call of the function with decoded arguments.
fn call(name: &Ident, arguments: &[Argument], answer: &Type) -> TokenStream {
    let names: Vec<&Ident> = arguments.iter().map(|argument| &argument.name).collect();
    let values = arguments.iter().map(|Argument { name, id, .. }| match id {
        None => quote!(::std::clone::Clone::clone(&self.#name)),
        Some(Id { naming, row }) => quote! {
            ::abide_schema::reducer::IdArgument::stored::<#row>(
                ::std::clone::Clone::clone(&self.#name),
                context,
                ::abide_schema::reducer::IdArgumentKind::#naming,
            )?
        },
    });
    quote! {
        impl ::abide_schema::reducer::Call for Arguments {
            fn run(
                &self,
                context: &mut ::abide_schema::reducer::Context<'_>,
            ) -> ::std::result::Result<
                ::abide_schema::reducer::Reply,
                ::abide_schema::reducer::Abort,
            > {
                #(let #names = #values;)*
                let answer: #answer = super::#name(context, #(#names),*);
                answer.map(::abide_schema::reducer::IntoReply::into_reply)
            }
        }
    }
}

/// Generates the argument decoder, with the list of valid arguments for its refusal.
fn decode(text: &str, takes: &str) -> TokenStream {
    quote! {
        fn decode(
            arguments: &::abide_schema::private::serde_json::Value,
        ) -> ::std::result::Result<
            ::std::boxed::Box<dyn ::abide_schema::reducer::Call>,
            ::abide_schema::refusal::Refusal,
        > {
            use ::abide_schema::private::serde::Deserialize as _;
            match Arguments::deserialize(arguments) {
                Ok(arguments) => Ok(::std::boxed::Box::new(arguments)),
                Err(error) => Err(::abide_schema::reducer::bad_arguments(#text, #takes, &error)),
            }
        }
    }
}

/// Generates the definition to register.
fn definition(text: &str, doc: &str, answer: &Type) -> TokenStream {
    quote! {
        /// The result type behind a `Result<_, Abort>`.
        trait Answered {
            type Result: ::abide_schema::private::schemars::JsonSchema;
        }

        impl<T: ::abide_schema::reducer::IntoReply, E> Answered for ::std::result::Result<T, E> {
            type Result = T::Result;
        }

        /// What to register: `Module::reducer(…::definition())`.
        #[must_use]
        pub fn definition() -> ::abide_schema::reducer::Definition {
            ::abide_schema::reducer::Definition {
                name: #text,
                doc: #doc,
                arguments: || ::abide_schema::private::schemars::schema_for!(Arguments).to_value(),
                result: ::abide_schema::reducer::result_schema::<<#answer as Answered>::Result>,
                decode,
            }
        }
    }
}

fn argument(parameter: &FnArg) -> Result<Argument> {
    let FnArg::Typed(parameter) = parameter else {
        return Err(Error::new(parameter.span(), "a reducer is a free function"));
    };
    let Pat::Ident(pattern) = &*parameter.pat else {
        return Err(Error::new(parameter.pat.span(), "a parameter needs a plain name"));
    };
    let kind = (*parameter.ty).clone();
    let optional = matches!(&kind, Type::Path(path)
        if path.path.segments.last().is_some_and(|segment| segment.ident == "Option"));
    let id = parameter.attrs.iter().find(|attribute| attribute.path().is_ident("id"));
    let id = id.map(|attribute| attribute.parse_args::<Id>()).transpose()?;
    Ok(Argument { name: pattern.ident.clone(), kind, optional, id })
}
