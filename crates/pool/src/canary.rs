//! Canaries: seeded bugs that the lab must find.
//!
//! A lab that finds nothing may have nothing to find, or may not look. So each kind of bug that the
//! design guards against has a switch. `farleaf check canaries` turns on one switch at a time and
//! counts the seeds until the lab reports a fault. Without the feature `canary` nobody can turn on a
//! switch, and the compiler removes the bugs.

/// Makes [`Canary`] of a table. A row has the variant and what is done wrong.
macro_rules! canaries {
    (
        { $($variant:ident: $what:literal;)+ }
        { $($own:ident: $own_what:literal;)+ }
        { $($directed:ident: $directed_what:literal;)+ }
    ) => {
        /// A seeded bug: what is done wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Canary {
            $(#[doc = $what] $variant,)+
            $(#[doc = $own_what] $own,)+
            $(#[doc = $directed_what] $directed,)+
        }

        impl Canary {
            /// All that the lab is to find.
            pub const ALL: &[Canary] = &[$(Canary::$variant,)+];
            /// Those of memory that compute servers expose. No engine uses it yet, so that this crate's own
            /// tests find them.
            pub const OF_REGIONS: &[Canary] = &[$(Canary::$own,)+];
            /// Those that hardly any seed of the lab meets, each of which a directed test of its engine finds.
            pub const DIRECTED: &[Canary] = &[$(Canary::$directed,)+];

            /// Returns its name on the command line: the variant's, in kebab case.
            pub fn name(self) -> String {
                let mut name = String::new();
                for letter in format!("{self:?}").chars() {
                    if letter.is_ascii_uppercase() && !name.is_empty() {
                        name.push('-');
                    }
                    name.push(letter.to_ascii_lowercase());
                }
                name
            }

            /// Returns the wrong step, as a sentence.
            pub fn describe(self) -> &'static str {
                match self {
                    $(Canary::$variant => $what,)+
                    $(Canary::$own => $own_what,)+
                    $(Canary::$directed => $directed_what,)+
                }
            }
        }
    };
}

canaries! { {
    UnlockBeforeWrite: "a change unlocks its node before it writes it";
    AnswerBeforeWrite: "a change is acknowledged before it is written";
    LoseRedoRecord: "a change of many words leaves no redo record";
    RedoOfAnyToken: "a taker of a lock also replays the redo record of another lock";
    PublishOldFirst: "a split writes the old node, which points to the new one, first";
    DropSibling: "a split forgets the right sibling of the new node";
    SeparatorUnchecked:
        "an unfinished split is finished without a look whether the new node still lives";
    UnlockRightEarly: "a merge unlocks the right node before it is dead";
    ForgetRetire: "what a merge or a changed value unlinks is never freed";
    GrowFromOldRoot: "a new root is built from the root as it was before its lock was taken";
    SkipCoverCheck: "a locked node is not checked for covering the key";
    CompareUnlocked: "a compare-exchange compares before it locks";
    AcceptTorn: "a READ is accepted whatever its checksum says";
    ScanBack: "a scan takes all of a leaf that has taken in the one before it";
    StealLock: "a lock that is held for long is taken from a living holder";
    SkipFence: "the dead are not cut off before their locks are taken over";
    ReuseEarly: "a retired object is reused while operations may hold it";
    SkipPin: "operations do not pin the epoch that they began in";
    SettleWithoutReconnect:
        "what became of a lost operation is looked at while it may still happen";
    ResendBlindly: "a lost change is written again without a look whether its lock is still held";
    AdoptUnchecked: "a shared node is taken for exclusive without a look whether it is current";
    CoolUnwritten: "a changed node leaves a cache without being written back";
    LoseLogRecord: "a change is acknowledged that was not logged";
    ReplayOlder: "a dead owner's log is gone through without a look at what the nodes hold";
    ForwardUnchecked: "a receiver executes an operation without checking that it owns the key";
    GiveUndrained: "a range is given away while operations on it are under way";
    AnswerAsZombie: "who was taken for dead answers from its cache";
    SplitOldFirst: "a cached node's split writes the old node, which points to the new one, first";
    LostIsNotBegun: "a lost reply is taken for a request that was not begun";
    DeliverTwice:
        "a request that comes twice is executed twice, and answered again when it is stale";
    BelieveCachedAbsence: "a key is absent because the leaf of a cached slot says so";
    MissUnchecked: "a key counts as absent although a slot of its leaf is between two writes";
    HandBeforeCompletion: "a waiter gets a lock before the chain that passes it on has completed";
    RootLeafUnlooked: "a leaf without neighbours counts although a load may be replacing it";
    SkipBirth: "a cached pointer counts without the birth of what it leads to";
    RewriteEqualWords: "a leaf's WRITE covers the words that stay as they are";
    LockProvesNothing: "a leaf's lock is taken from whatever word it holds by now";
    LoseLeafRedo: "a change of several words of a value leaves no redo record";
    ResendContent: "a leaf's lost WRITE is sent again without a look at its lock";
    TakeOverUnrecorded: "a takeover of a leaf writes no redo record of its own";
    ReviveHeadFirst: "the head of a removed leaf that comes back is written before its value";
    FreeSlot: "the slot of an unlinked leaf becomes unused again";
    UnlinkUnlocked: "a removed leaf is unlinked without its lock";
    MoveUnmarked: "a leaf whose value moves elsewhere is not marked as moving";
    CopyUnfrozen: "a node is copied and replaced without freezing its slots";
    TrustDeadNode: "a cached node counts although it is dead";
    RepostSlotCas: "a slot's lost CAS is posted again, and its answer believed";
    JoinOpenRead: "a get takes the answer of a READ that began before it";
    SealLate: "changes join a batch that has been written";
    GrowUnhelped:
        "the second insert behind the slots that count leaves the node's header to the first";
    BelieveOldRead: "a READ makes an exact entry of a node that has changed since it began";
    KeepExactEntries: "an owner that gives a range away keeps its exact entries";
    WriteSlotBeside: "an owner writes a slot while other changes of the node are under way";
    StoreLeafBeside:
        "an owner stores a leaf that another of its operations has changed since it was read";
    EraseRemoved: "a remove leaves an empty slot, not a TOMB";
    FillAnySlot: "an insert takes the last empty slot of its bucket, not the first";
    SwitchUnsealed: "a node is replaced whose slots were not sealed";
    AbsorbAny: "a blind change that lost to any change counts as done just before it";
    BelieveSealed: "a lookup that began at an entry believes and follows sealed words";
    EntryValidAtOnce: "an entry is valid before its node was seen in the tree";
    EntryMovedAtOnce: "an entry that is moved to another node is valid at once";
    TakeOutBeforeSeal: "the entries of a node are taken out before it is sealed";
    KeepEntriesOfFreed: "recovery leaves the entries of nodes that it frees";
    IgnoreNotices: "a remembered entry is used without a look at notices";
    RememberForever: "what is remembered of a table's root is used at any later moment";
    AbsentUnproven: "a lookup that began at an entry answers that a key is absent without a proof";
    InsertUnproven: "an insert that began at an entry takes a slot without a proof";
    LostIsNotDone: "a publishing CAS whose completion was lost counts as not done";
    LoseRun: "a run of a block is used without its words in the page map";
    UnlockNewLeafEarly: "a split unlocks the new leaf before the old one has its new version";
    OldTableKeepsVersion: "the fingerprints of a leaf that was split keep its old version";
    ClearedSlotsKeepVersion: "the slots that a split empties keep the leaf's old version";
    BuildClearsTorn: "a slot that a dead client's update has torn is emptied";
    BuildKeepsTorn: "a slot that a dead client's insert or remove has torn is kept";
    MergeUnchecked: "a merge takes the right leaf for empty without a look under its lock";
    FreeLeafUncleared: "a leaf leaves the tree with its pairs";
    BelieveOldHeader: "a leaf's header counts whenever the leaf was born";
    ScanStale: "a scan skips slots of another version than the leaf's";
    CollapseUnclaimed: "every client that may have unlinked a node retires it";
} {
    MembersBeforeFence: "the member table is read before the fence at memory servers";
    RegionUnsettled: "an operation on a region is posted again without a reconnect";
} {
    TrustOldCopy: "a shared copy of an earlier map leads to a child without a look whether it is current";
} }

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
