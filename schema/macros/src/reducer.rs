//! The expansion of `#[reducer]`.

use proc_macro2::TokenStream;
use quote::quote;
use syn::spanned::Spanned as _;
use syn::{Error, FnArg, Ident, ItemFn, Pat, Result, ReturnType, Type};

use crate::doc_of;

/// One argument of the call: a parameter after the context.
struct Argument {
    name: Ident,
    kind: Type,
    optional: bool,
}

pub(crate) fn expand(item: TokenStream) -> Result<TokenStream> {
    let item: ItemFn = syn::parse2(item)?;
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
    let (name, visibility, doc) = (&item.sig.ident, &item.vis, doc_of(&item.attrs));
    let text = name.to_string();
    let names: Vec<&Ident> = arguments.iter().map(|argument| &argument.name).collect();
    let kinds: Vec<&Type> = arguments.iter().map(|argument| &argument.kind).collect();
    let module_doc = format!("The reducer [`{text}`](fn@{text}) as registered.");
    let (call, decode) = (call(name, &names, answer), decode(&text, &takes));
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

/// Running the function with decoded arguments.
fn call(name: &Ident, names: &[&Ident], answer: &Type) -> TokenStream {
    quote! {
        impl ::abide_schema::reducer::Call for Arguments {
            fn run(
                &self,
                context: &mut ::abide_schema::reducer::Context<'_>,
            ) -> ::std::result::Result<
                ::abide_schema::reducer::Reply,
                ::abide_schema::reducer::Abort,
            > {
                let answer: #answer =
                    super::#name(context, #(::std::clone::Clone::clone(&self.#names)),*);
                answer.map(::abide_schema::reducer::IntoReply::into_reply)
            }
        }
    }
}

/// Decoding arguments, with the list of those that fit in the refusal.
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

/// The reducer as a value to register.
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
    Ok(Argument { name: pattern.ident.clone(), kind, optional })
}
