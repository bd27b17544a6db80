//! Rules of the built-in reducers and of the engine that programs share with them: ids and names, versions of prompts,
//! templates, the tenants of scopes.

pub use abide_reducers::agent::delegation_cycle;
pub use abide_reducers::correction::recorded_result;
pub use abide_reducers::exchange::{INPUT_TOOL, asked_by, input_id};
pub use abide_reducers::memory::space_name;
pub use abide_reducers::prompt::{PROMPT_VERSION_AT, prompt_version};
pub use abide_schema::id::{forbidden_character, is_invisible};
pub use abide_schema::reducer::DERIVED;
pub use abide_schema::share::CommonScopeKeys;
pub use abide_schema::{Checksum, nearest, template};
