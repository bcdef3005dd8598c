//! Numbers that name things. Each is valid for the life of the process only.

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($type:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub $type);

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// What a client sent.
    RequestId(u64)
);
id!(
    /// One token stream of a request.
    SeqId(u64)
);
id!(
    /// Row of the tenant table; 0 is the first tenant of the configuration.
    TenantId(u32)
);
id!(
    /// A prefill pool and a decode pool between which the hand-off is allowed.
    LaneId(u32)
);
id!(
    /// An engine's page pool.
    PoolId(u32)
);
id!(
    /// One of the precisions that the deployment offers.
    PrecisionId(u32)
);
