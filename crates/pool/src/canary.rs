//! Canaries: seeded bugs that the lab must find.
//!
//! A lab that finds nothing may have nothing to find, or may not look. So each kind of bug that the
//! design guards against has a switch. `farleaf check canaries` turns on one switch at a time and
//! counts the seeds until the lab reports a fault. Without the feature `canary` nobody can turn on a
//! switch, and the compiler removes the bugs.

/// A seeded bug: what is done wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Canary {
    /// A change unlocks its node before it writes it.
    UnlockBeforeWrite,
    /// A change is acknowledged before it is written.
    AnswerBeforeWrite,
    /// A change of many words leaves no redo record.
    LoseRedoRecord,
    /// Whoever takes over a lock also replays a redo record of another lock.
    RedoOfAnyToken,
    /// A split writes the old node, which points to the new one, first.
    PublishOldFirst,
    /// A split forgets the right sibling of the new node.
    DropSibling,
    /// An unfinished split is finished without a look whether the new node still lives.
    SeparatorUnchecked,
    /// A merge unlocks the right node before it is dead.
    UnlockRightEarly,
    /// What a merge or a changed value unlinks is never freed.
    ForgetRetire,
    /// A new root is built from the root as it was before its lock was taken.
    GrowFromOldRoot,
    /// A locked node is not checked for covering the key.
    SkipCoverCheck,
    /// A compare-exchange compares before it locks.
    CompareUnlocked,
    /// A READ is accepted whatever its checksum says.
    AcceptTorn,
    /// A scan takes all of a leaf that has taken in the one before it.
    ScanBack,
    /// A lock that is held for long is taken from a living holder.
    StealLock,
    /// The dead are not cut off before their locks are taken over.
    SkipFence,
    /// A retired object is reused whoever may still hold it.
    ReuseEarly,
    /// Operations do not pin the epoch that they began in.
    SkipPin,
    /// A lost change is written again without a look whether its lock is still held.
    ResendBlindly,
    /// What became of a lost operation is looked at while it may still happen.
    SettleWithoutReconnect,
    /// A node that was cached as shared is taken for exclusive without a look whether it is current.
    AdoptUnchecked,
    /// A changed node leaves a cache without being written back.
    CoolUnwritten,
    /// A change is acknowledged that was not logged.
    LoseLogRecord,
    /// A dead owner's log is gone through without a look at what the nodes hold.
    ReplayOlder,
    /// Who is sent an operation does it whether the key is its own or not.
    ForwardUnchecked,
    /// A range is given away while operations on it are under way.
    GiveUndrained,
    /// Who was taken for dead answers from its cache.
    AnswerAsZombie,
    /// A cached node's split writes the old node, which points to the new one, first.
    SplitOldFirst,
    /// A lost reply is taken for a request that was not begun.
    LostIsNotBegun,
    /// A request that comes twice is executed twice, and answered again when it is stale.
    DeliverTwice,
    /// A key is absent because the leaf of a cached slot says so.
    BelieveCachedAbsence,
    /// A cached pointer counts without the birth of what it leads to.
    SkipBirth,
    /// A leaf's WRITE covers the words that stay as they are.
    RewriteEqualWords,
    /// A leaf's lock is taken from whatever word it holds by now.
    LockProvesNothing,
    /// A change of several words of a value leaves no redo record.
    LoseLeafRedo,
    /// A leaf's lost WRITE is sent again without a look at its lock.
    ResendContent,
    /// A takeover of a leaf writes no redo record of its own.
    TakeOverUnrecorded,
    /// The head of a removed leaf that comes back is written before its value.
    ReviveHeadFirst,
    /// The slot of an unlinked leaf becomes unused again.
    FreeSlot,
    /// A removed leaf is unlinked without its lock.
    UnlinkUnlocked,
    /// A leaf whose value moves elsewhere is not marked as moving.
    MoveUnmarked,
    /// A node is copied and replaced without freezing its slots.
    CopyUnfrozen,
    /// A cached node counts although it is dead.
    TrustDeadNode,
    /// A slot's lost CAS is posted again, and its answer believed.
    RepostSlotCas,
    /// A get takes the answer of a READ that began before it.
    JoinOpenRead,
    /// Changes join a batch that has been written.
    SealLate,
    /// The second insert behind the slots that count leaves the node's header to the first.
    GrowUnhelped,
    /// A READ makes an exact entry of a node that has changed since it began.
    BelieveOldRead,
    /// An owner that gives a range away keeps its exact entries.
    KeepExactEntries,
    /// An owner writes a slot while other changes of the node are under way.
    WriteSlotBeside,
    /// An owner stores a leaf that another of its operations has changed since it was read.
    StoreLeafBeside,
    /// A remove leaves an empty slot, not a TOMB.
    EraseRemoved,
    /// An insert takes the last empty slot of its bucket, not the first.
    FillAnySlot,
    /// A node is replaced whose slots were not sealed.
    SwitchUnsealed,
    /// A blind change that lost to any change counts as done just before it.
    AbsorbAny,
    /// A lookup that began at an entry believes and follows sealed words.
    BelieveSealed,
    /// An entry is valid before its node was seen in the tree.
    EntryValidAtOnce,
    /// An entry that is moved to another node is valid at once.
    EntryMovedAtOnce,
    /// The entries of a node are taken out before it is sealed.
    TakeOutBeforeSeal,
    /// Recovery leaves the entries of nodes that it frees.
    KeepEntriesOfFreed,
    /// A remembered entry is used without a look at notices.
    IgnoreNotices,
    /// What is remembered of a table's root is used at any later moment.
    RememberForever,
    /// A lookup that began at an entry answers that a key is absent without a proof.
    AbsentUnproven,
    /// An insert that began at an entry takes a slot without a proof.
    InsertUnproven,
    /// A publishing CAS whose completion was lost counts as not done.
    LostIsNotDone,
    /// Every client that may have unlinked a node retires it.
    CollapseUnclaimed,
}

impl Canary {
    /// All that the lab is to find.
    pub const ALL: &[Canary] = &[
        Canary::UnlockBeforeWrite,
        Canary::AnswerBeforeWrite,
        Canary::LoseRedoRecord,
        Canary::RedoOfAnyToken,
        Canary::PublishOldFirst,
        Canary::DropSibling,
        Canary::SeparatorUnchecked,
        Canary::UnlockRightEarly,
        Canary::ForgetRetire,
        Canary::GrowFromOldRoot,
        Canary::SkipCoverCheck,
        Canary::CompareUnlocked,
        Canary::AcceptTorn,
        Canary::ScanBack,
        Canary::StealLock,
        Canary::SkipFence,
        Canary::ReuseEarly,
        Canary::SkipPin,
        Canary::SettleWithoutReconnect,
        Canary::ResendBlindly,
        Canary::AdoptUnchecked,
        Canary::CoolUnwritten,
        Canary::LoseLogRecord,
        Canary::ReplayOlder,
        Canary::ForwardUnchecked,
        Canary::GiveUndrained,
        Canary::AnswerAsZombie,
        Canary::SplitOldFirst,
        Canary::LostIsNotBegun,
        Canary::DeliverTwice,
        Canary::BelieveCachedAbsence,
        Canary::SkipBirth,
        Canary::RewriteEqualWords,
        Canary::LockProvesNothing,
        Canary::LoseLeafRedo,
        Canary::ResendContent,
        Canary::TakeOverUnrecorded,
        Canary::ReviveHeadFirst,
        Canary::FreeSlot,
        Canary::UnlinkUnlocked,
        Canary::MoveUnmarked,
        Canary::CopyUnfrozen,
        Canary::TrustDeadNode,
        Canary::RepostSlotCas,
        Canary::JoinOpenRead,
        Canary::SealLate,
        Canary::GrowUnhelped,
        Canary::BelieveOldRead,
        Canary::KeepExactEntries,
        Canary::WriteSlotBeside,
        Canary::StoreLeafBeside,
        Canary::EraseRemoved,
        Canary::FillAnySlot,
        Canary::SwitchUnsealed,
        Canary::AbsorbAny,
        Canary::BelieveSealed,
        Canary::EntryValidAtOnce,
        Canary::EntryMovedAtOnce,
        Canary::TakeOutBeforeSeal,
        Canary::KeepEntriesOfFreed,
        Canary::IgnoreNotices,
        Canary::RememberForever,
        Canary::AbsentUnproven,
        Canary::InsertUnproven,
        Canary::LostIsNotDone,
        Canary::CollapseUnclaimed,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Canary::UnlockBeforeWrite => "unlock-before-write",
            Canary::AnswerBeforeWrite => "answer-before-write",
            Canary::LoseRedoRecord => "lose-redo-record",
            Canary::RedoOfAnyToken => "redo-of-any-token",
            Canary::PublishOldFirst => "publish-old-first",
            Canary::DropSibling => "drop-sibling",
            Canary::SeparatorUnchecked => "separator-unchecked",
            Canary::UnlockRightEarly => "unlock-right-early",
            Canary::ForgetRetire => "forget-retire",
            Canary::GrowFromOldRoot => "grow-from-old-root",
            Canary::SkipCoverCheck => "skip-cover-check",
            Canary::CompareUnlocked => "compare-unlocked",
            Canary::AcceptTorn => "accept-torn",
            Canary::ScanBack => "scan-back",
            Canary::StealLock => "steal-lock",
            Canary::SkipFence => "skip-fence",
            Canary::ReuseEarly => "reuse-early",
            Canary::SkipPin => "skip-pin",
            Canary::SettleWithoutReconnect => "settle-without-reconnect",
            Canary::ResendBlindly => "resend-blindly",
            Canary::AdoptUnchecked => "adopt-unchecked",
            Canary::CoolUnwritten => "cool-unwritten",
            Canary::LoseLogRecord => "lose-log-record",
            Canary::ReplayOlder => "replay-older",
            Canary::ForwardUnchecked => "forward-unchecked",
            Canary::GiveUndrained => "give-undrained",
            Canary::AnswerAsZombie => "answer-as-zombie",
            Canary::SplitOldFirst => "split-old-first",
            Canary::LostIsNotBegun => "lost-is-not-begun",
            Canary::DeliverTwice => "deliver-twice",
            Canary::BelieveCachedAbsence => "believe-cached-absence",
            Canary::SkipBirth => "skip-birth",
            Canary::RewriteEqualWords => "rewrite-equal-words",
            Canary::LockProvesNothing => "lock-proves-nothing",
            Canary::LoseLeafRedo => "lose-leaf-redo",
            Canary::ResendContent => "resend-content",
            Canary::TakeOverUnrecorded => "take-over-unrecorded",
            Canary::ReviveHeadFirst => "revive-head-first",
            Canary::FreeSlot => "free-slot",
            Canary::UnlinkUnlocked => "unlink-unlocked",
            Canary::MoveUnmarked => "move-unmarked",
            Canary::CopyUnfrozen => "copy-unfrozen",
            Canary::TrustDeadNode => "trust-dead-node",
            Canary::RepostSlotCas => "repost-slot-cas",
            Canary::JoinOpenRead => "join-open-read",
            Canary::SealLate => "seal-late",
            Canary::GrowUnhelped => "grow-unhelped",
            Canary::BelieveOldRead => "believe-old-read",
            Canary::KeepExactEntries => "keep-exact-entries",
            Canary::WriteSlotBeside => "write-slot-beside",
            Canary::StoreLeafBeside => "store-leaf-beside",
            Canary::EraseRemoved => "erase-removed",
            Canary::FillAnySlot => "fill-any-slot",
            Canary::SwitchUnsealed => "switch-unsealed",
            Canary::AbsorbAny => "absorb-any",
            Canary::BelieveSealed => "believe-sealed",
            Canary::EntryValidAtOnce => "entry-valid-at-once",
            Canary::EntryMovedAtOnce => "entry-moved-at-once",
            Canary::TakeOutBeforeSeal => "take-out-before-seal",
            Canary::KeepEntriesOfFreed => "keep-entries-of-freed",
            Canary::IgnoreNotices => "ignore-notices",
            Canary::RememberForever => "remember-forever",
            Canary::AbsentUnproven => "absent-unproven",
            Canary::InsertUnproven => "insert-unproven",
            Canary::LostIsNotDone => "lost-is-not-done",
            Canary::CollapseUnclaimed => "collapse-unclaimed",
        }
    }

    /// What is done wrong, as a sentence.
    pub fn describe(self) -> &'static str {
        match self {
            Canary::UnlockBeforeWrite => "a change unlocks its node before it writes it",
            Canary::AnswerBeforeWrite => "a change is acknowledged before it is written",
            Canary::LoseRedoRecord => "a change of many words leaves no redo record",
            Canary::RedoOfAnyToken => {
                "whoever takes over a lock also replays a redo record of another lock"
            }
            Canary::PublishOldFirst => {
                "a split writes the old node, which points to the new one, first"
            }
            Canary::DropSibling => "a split forgets the right sibling of the new node",
            Canary::SeparatorUnchecked => {
                "an unfinished split is finished without a look whether the new node still lives"
            }
            Canary::UnlockRightEarly => "a merge unlocks the right node before it is dead",
            Canary::ForgetRetire => "what a merge or a changed value unlinks is never freed",
            Canary::GrowFromOldRoot => {
                "a new root is built from the root as it was before its lock was taken"
            }
            Canary::SkipCoverCheck => "a locked node is not checked for covering the key",
            Canary::CompareUnlocked => "a compare-exchange compares before it locks",
            Canary::AcceptTorn => "a READ is accepted whatever its checksum says",
            Canary::ScanBack => "a scan takes all of a leaf that has taken in the one before it",
            Canary::StealLock => "a lock that is held for long is taken from a living holder",
            Canary::SkipFence => "the dead are not cut off before their locks are taken over",
            Canary::ReuseEarly => "a retired object is reused whoever may still hold it",
            Canary::SkipPin => "operations do not pin the epoch that they began in",
            Canary::SettleWithoutReconnect => {
                "what became of a lost operation is looked at while it may still happen"
            }
            Canary::ResendBlindly => {
                "a lost change is written again without a look whether its lock is still held"
            }
            Canary::AdoptUnchecked => {
                "a shared node is taken for exclusive without a look whether it is current"
            }
            Canary::CoolUnwritten => "a changed node leaves a cache without being written back",
            Canary::LoseLogRecord => "a change is acknowledged that was not logged",
            Canary::ReplayOlder => {
                "a dead owner's log is gone through without a look at what the nodes hold"
            }
            Canary::ForwardUnchecked => {
                "who is sent an operation does it whether the key is its own or not"
            }
            Canary::GiveUndrained => "a range is given away while operations on it are under way",
            Canary::AnswerAsZombie => "who was taken for dead answers from its cache",
            Canary::SplitOldFirst => {
                "a cached node's split writes the old node, which points to the new one, first"
            }
            Canary::LostIsNotBegun => "a lost reply is taken for a request that was not begun",
            Canary::DeliverTwice => {
                "a request that comes twice is executed twice, and answered again when it is stale"
            }
            Canary::BelieveCachedAbsence => {
                "a key is absent because the leaf of a cached slot says so"
            }
            Canary::SkipBirth => "a cached pointer counts without the birth of what it leads to",
            Canary::RewriteEqualWords => "a leaf's WRITE covers the words that stay as they are",
            Canary::LockProvesNothing => {
                "a leaf's lock is taken from whatever word it holds by now"
            }
            Canary::LoseLeafRedo => "a change of several words of a value leaves no redo record",
            Canary::ResendContent => "a leaf's lost WRITE is sent again without a look at its lock",
            Canary::TakeOverUnrecorded => "a takeover of a leaf writes no redo record of its own",
            Canary::ReviveHeadFirst => {
                "the head of a removed leaf that comes back is written before its value"
            }
            Canary::FreeSlot => "the slot of an unlinked leaf becomes unused again",
            Canary::UnlinkUnlocked => "a removed leaf is unlinked without its lock",
            Canary::MoveUnmarked => "a leaf whose value moves elsewhere is not marked as moving",
            Canary::CopyUnfrozen => "a node is copied and replaced without freezing its slots",
            Canary::TrustDeadNode => "a cached node counts although it is dead",
            Canary::RepostSlotCas => "a slot's lost CAS is posted again, and its answer believed",
            Canary::JoinOpenRead => "a get takes the answer of a READ that began before it",
            Canary::SealLate => "changes join a batch that has been written",
            Canary::GrowUnhelped => {
                "the second insert behind the slots that count leaves the node's header to the first"
            }
            Canary::BelieveOldRead => {
                "a READ makes an exact entry of a node that has changed since it began"
            }
            Canary::KeepExactEntries => "an owner that gives a range away keeps its exact entries",
            Canary::WriteSlotBeside => {
                "an owner writes a slot while other changes of the node are under way"
            }
            Canary::StoreLeafBeside => {
                "an owner stores a leaf that another of its operations has changed since it was read"
            }
            Canary::EraseRemoved => "a remove leaves an empty slot, not a TOMB",
            Canary::FillAnySlot => {
                "an insert takes the last empty slot of its bucket, not the first"
            }
            Canary::SwitchUnsealed => "a node is replaced whose slots were not sealed",
            Canary::AbsorbAny => {
                "a blind change that lost to any change counts as done just before it"
            }
            Canary::BelieveSealed => {
                "a lookup that began at an entry believes and follows sealed words"
            }
            Canary::EntryValidAtOnce => "an entry is valid before its node was seen in the tree",
            Canary::EntryMovedAtOnce => "an entry that is moved to another node is valid at once",
            Canary::TakeOutBeforeSeal => "the entries of a node are taken out before it is sealed",
            Canary::KeepEntriesOfFreed => "recovery leaves the entries of nodes that it frees",
            Canary::IgnoreNotices => "a remembered entry is used without a look at notices",
            Canary::RememberForever => {
                "what is remembered of a table's root is used at any later moment"
            }
            Canary::AbsentUnproven => {
                "a lookup that began at an entry answers that a key is absent without a proof"
            }
            Canary::InsertUnproven => {
                "an insert that began at an entry takes a slot without a proof"
            }
            Canary::LostIsNotDone => {
                "a publishing CAS whose completion was lost counts as not done"
            }
            Canary::CollapseUnclaimed => "every client that may have unlinked a node retires it",
        }
    }
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
