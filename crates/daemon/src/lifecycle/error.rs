//! What can go wrong when sandboxes begin, and with commands in them.

#[derive(Debug, thiserror::Error)]
pub enum LifecycleError {
    #[error("the command could not be run in {name:?}: {}", why.cause)]
    Exec { name: String, why: rekindle_sandbox::NotStarted },

    #[error("files of {name:?} could not be copied: {reason}")]
    Copy { name: String, reason: String },

    #[error(
        "{tenant:?} is no tenant's name: expected 1 to {most} letters, digits, dots, dashes or underscores, the first a letter or digit, and not `none`; choose such a one"
    )]
    BadTenant { tenant: String, most: usize },

    #[error(
        "the image {image:?} cannot share a context: its program was started without `--share TENANT`, so that its addresses may be another's too; restore it without, or make the image anew: of a program started with it, or by `image framework --no-gpu`"
    )]
    CannotShare { image: String },

    #[error(
        "a program of mode driver has a context of its own; leave `--share` out, or run it with `--mode sandbox`"
    )]
    OwnContext,

    #[error(
        "`--link-weight`, `--sm-share`, `--sm-weight`, `--sm-most` and `--share-memory` say what a program has of GPU \
         contexts that it shares with others; say with whose programs it does by `--share TENANT`"
    )]
    NoPortion,

    #[error(
        "`--sm-most` is {most} %, and `--sm-share`, which is the least, {share} %; expected a most that is not below that; \
         change one of them"
    )]
    MostBelowShare { share: u32, most: u32 },

    #[error(
        "`--mend` keeps a program from seeing the loss of a worker of its own; {why}; leave one of the two away"
    )]
    NoMending { why: &'static str },

    #[error(
        "{name:?} cannot have {wanted} % of the multiprocessors: of the programs that share as {tenant:?} {others}; take \
         some from them by `rekindle limits NAME --sm-share`, or give it less"
    )]
    NoRoomForShare { name: String, tenant: String, wanted: u32, others: String },

    #[error(
        "the sandbox {name:?} has a GPU context of its own, and nothing to divide; run it with `--share TENANT`"
    )]
    NotShared { name: String },
}
