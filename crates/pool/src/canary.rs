//! Canaries: seeded bugs that the lab must find.
//!
//! A lab that finds nothing may have nothing to find, or may not look. So each kind of bug that the
//! design guards against has a switch. `farleaf check canaries` turns on one switch at a time and
//! counts the seeds until the lab reports a fault. Without the feature `canary` nobody can turn on a
//! switch, and the compiler removes the bugs.

/// Makes [`Canary`] of a table. A row has the variant, its name on the command line, and what is done wrong.
macro_rules! canaries {
    ($($variant:ident: $name:literal, $what:literal;)+) => {
        /// A seeded bug: what is done wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Canary {
            $(#[doc = $what] $variant,)+
        }

        impl Canary {
            /// All that the lab is to find.
            pub const ALL: &[Canary] = &[$(Canary::$variant,)+];

            /// Its name on the command line.
            pub fn name(self) -> &'static str {
                match self {
                    $(Canary::$variant => $name,)+
                }
            }

            /// Returns the wrong step, as a sentence.
            pub fn describe(self) -> &'static str {
                match self {
                    $(Canary::$variant => $what,)+
                }
            }
        }
    };
}

canaries! {
    UnlockBeforeWrite: "unlock-before-write",
        "a change unlocks its node before it writes it";
    AnswerBeforeWrite: "answer-before-write",
        "a change is acknowledged before it is written";
    LoseRedoRecord: "lose-redo-record",
        "a change of many words leaves no redo record";
    RedoOfAnyToken: "redo-of-any-token",
        "whoever takes over a lock also replays a redo record of another lock";
    PublishOldFirst: "publish-old-first",
        "a split writes the old node, which points to the new one, first";
    DropSibling: "drop-sibling",
        "a split forgets the right sibling of the new node";
    SeparatorUnchecked: "separator-unchecked",
        "an unfinished split is finished without a look whether the new node still lives";
    UnlockRightEarly: "unlock-right-early",
        "a merge unlocks the right node before it is dead";
    ForgetRetire: "forget-retire",
        "what a merge or a changed value unlinks is never freed";
    GrowFromOldRoot: "grow-from-old-root",
        "a new root is built from the root as it was before its lock was taken";
    SkipCoverCheck: "skip-cover-check",
        "a locked node is not checked for covering the key";
    CompareUnlocked: "compare-unlocked",
        "a compare-exchange compares before it locks";
    AcceptTorn: "accept-torn",
        "a READ is accepted whatever its checksum says";
    ScanBack: "scan-back",
        "a scan takes all of a leaf that has taken in the one before it";
    StealLock: "steal-lock",
        "a lock that is held for long is taken from a living holder";
    SkipFence: "skip-fence",
        "the dead are not cut off before their locks are taken over";
    ReuseEarly: "reuse-early",
        "a retired object is reused whoever may still hold it";
    SkipPin: "skip-pin",
        "operations do not pin the epoch that they began in";
    SettleWithoutReconnect: "settle-without-reconnect",
        "what became of a lost operation is looked at while it may still happen";
    ResendBlindly: "resend-blindly",
        "a lost change is written again without a look whether its lock is still held";
    AdoptUnchecked: "adopt-unchecked",
        "a shared node is taken for exclusive without a look whether it is current";
    CoolUnwritten: "cool-unwritten",
        "a changed node leaves a cache without being written back";
    LoseLogRecord: "lose-log-record",
        "a change is acknowledged that was not logged";
    ReplayOlder: "replay-older",
        "a dead owner's log is gone through without a look at what the nodes hold";
    ForwardUnchecked: "forward-unchecked",
        "who is sent an operation does it whether the key is its own or not";
    GiveUndrained: "give-undrained",
        "a range is given away while operations on it are under way";
    AnswerAsZombie: "answer-as-zombie",
        "who was taken for dead answers from its cache";
    SplitOldFirst: "split-old-first",
        "a cached node's split writes the old node, which points to the new one, first";
    LostIsNotBegun: "lost-is-not-begun",
        "a lost reply is taken for a request that was not begun";
    DeliverTwice: "deliver-twice",
        "a request that comes twice is executed twice, and answered again when it is stale";
    BelieveCachedAbsence: "believe-cached-absence",
        "a key is absent because the leaf of a cached slot says so";
    SkipBirth: "skip-birth",
        "a cached pointer counts without the birth of what it leads to";
    RewriteEqualWords: "rewrite-equal-words",
        "a leaf's WRITE covers the words that stay as they are";
    LockProvesNothing: "lock-proves-nothing",
        "a leaf's lock is taken from whatever word it holds by now";
    LoseLeafRedo: "lose-leaf-redo",
        "a change of several words of a value leaves no redo record";
    ResendContent: "resend-content",
        "a leaf's lost WRITE is sent again without a look at its lock";
    TakeOverUnrecorded: "take-over-unrecorded",
        "a takeover of a leaf writes no redo record of its own";
    ReviveHeadFirst: "revive-head-first",
        "the head of a removed leaf that comes back is written before its value";
    FreeSlot: "free-slot",
        "the slot of an unlinked leaf becomes unused again";
    UnlinkUnlocked: "unlink-unlocked",
        "a removed leaf is unlinked without its lock";
    MoveUnmarked: "move-unmarked",
        "a leaf whose value moves elsewhere is not marked as moving";
    CopyUnfrozen: "copy-unfrozen",
        "a node is copied and replaced without freezing its slots";
    TrustDeadNode: "trust-dead-node",
        "a cached node counts although it is dead";
    RepostSlotCas: "repost-slot-cas",
        "a slot's lost CAS is posted again, and its answer believed";
    JoinOpenRead: "join-open-read",
        "a get takes the answer of a READ that began before it";
    SealLate: "seal-late",
        "changes join a batch that has been written";
    GrowUnhelped: "grow-unhelped",
        "the second insert behind the slots that count leaves the node's header to the first";
    BelieveOldRead: "believe-old-read",
        "a READ makes an exact entry of a node that has changed since it began";
    KeepExactEntries: "keep-exact-entries",
        "an owner that gives a range away keeps its exact entries";
    WriteSlotBeside: "write-slot-beside",
        "an owner writes a slot while other changes of the node are under way";
    StoreLeafBeside: "store-leaf-beside",
        "an owner stores a leaf that another of its operations has changed since it was read";
    EraseRemoved: "erase-removed",
        "a remove leaves an empty slot, not a TOMB";
    FillAnySlot: "fill-any-slot",
        "an insert takes the last empty slot of its bucket, not the first";
    SwitchUnsealed: "switch-unsealed",
        "a node is replaced whose slots were not sealed";
    AbsorbAny: "absorb-any",
        "a blind change that lost to any change counts as done just before it";
    BelieveSealed: "believe-sealed",
        "a lookup that began at an entry believes and follows sealed words";
    EntryValidAtOnce: "entry-valid-at-once",
        "an entry is valid before its node was seen in the tree";
    EntryMovedAtOnce: "entry-moved-at-once",
        "an entry that is moved to another node is valid at once";
    TakeOutBeforeSeal: "take-out-before-seal",
        "the entries of a node are taken out before it is sealed";
    KeepEntriesOfFreed: "keep-entries-of-freed",
        "recovery leaves the entries of nodes that it frees";
    IgnoreNotices: "ignore-notices",
        "a remembered entry is used without a look at notices";
    RememberForever: "remember-forever",
        "what is remembered of a table's root is used at any later moment";
    AbsentUnproven: "absent-unproven",
        "a lookup that began at an entry answers that a key is absent without a proof";
    InsertUnproven: "insert-unproven",
        "an insert that began at an entry takes a slot without a proof";
    LostIsNotDone: "lost-is-not-done",
        "a publishing CAS whose completion was lost counts as not done";
    CollapseUnclaimed: "collapse-unclaimed",
        "every client that may have unlinked a node retires it";
}

farleaf_fabric::arm_canaries!(
    Canary, when feature = "canary", pub,
    below |canary| {
        // Bugs of calls are the fabric's.
        let of_calls = match canary {
            Canary::LostIsNotBegun => Some(farleaf_fabric::Canary::LostIsNotBegun),
            Canary::DeliverTwice => Some(farleaf_fabric::Canary::DeliverTwice),
            _ => None,
        };
        of_calls.map(farleaf_fabric::Canary::arm)
    } => Option<farleaf_fabric::ArmedCanary>
);
