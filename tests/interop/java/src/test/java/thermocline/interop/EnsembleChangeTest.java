package thermocline.interop;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.net.BookieId;
import org.junit.jupiter.api.extension.ExtendWith;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import thermocline.interop.cluster.Cluster;
import thermocline.interop.cluster.SharedCluster;
import thermocline.interop.cluster.Wire;

/** Bookies are killed with SIGKILL, and come back. */
@ExtendWith(SharedCluster.class)
class EnsembleChangeTest {
    private final Cluster cluster;

    EnsembleChangeTest(Cluster cluster) {
        this.cluster = cluster;
    }

    private static List<BookieId> lastEnsemble(LedgerHandle ledger) {
        return ledger.getLedgerMetadata().getAllEnsembles().lastEntry().getValue();
    }

    @ParameterizedTest
    @EnumSource
    void aKilledMemberIsReplacedUnderWrites(Wire wire) throws Exception {
        int count = 600;
        try (BookKeeper client = cluster.connect(wire)) {
            LedgerHandle writer = client.createLedger(3, 3, 2, DigestType.CRC32C, Payloads.PASSWORD);
            BookieId victim = lastEnsemble(writer).get(1);
            List<CompletableFuture<Long>> adds = new ArrayList<>();
            for (int entry = 0; entry < count; entry++) {
                adds.add(writer.appendAsync(Payloads.of(writer.getId(), entry)));
                if (entry == count / 3) {
                    adds.get(entry / 2).get(30, TimeUnit.SECONDS);
                    cluster.bookie(victim).kill();
                }
            }
            CompletableFuture.allOf(adds.toArray(CompletableFuture[]::new)).get(60, TimeUnit.SECONDS);
            // The change may have been made without it being noticed by an entry that was complete already.
            Payloads.append(writer, 10);
            assertFalse(lastEnsemble(writer).contains(victim), "the dead bookie is still a member");
            writer.close();
            LedgerHandle reader = client.openLedger(writer.getId(), DigestType.CRC32C, Payloads.PASSWORD);
            Payloads.check(reader, 0, count + 9);
        }
    }

    /** With one copy of each entry there is nobody else to read from. */
    @ParameterizedTest
    @EnumSource
    void aKilledBookieHasWhatItAcknowledged(Wire wire) throws Exception {
        long ledger;
        try (BookKeeper client = cluster.connect(wire)) {
            LedgerHandle writer = client.createLedger(1, 1, 1, DigestType.CRC32C, Payloads.PASSWORD);
            Payloads.append(writer, 100);
            ledger = writer.getId();
            cluster.bookie(lastEnsemble(writer).get(0)).restart();
        }
        // A client that knew the bookie before may not have heard yet that it is back.
        try (BookKeeper client = cluster.connect(wire)) {
            LedgerHandle recovered = client.openLedger(ledger, DigestType.CRC32C, Payloads.PASSWORD);
            assertEquals(99, recovered.getLastAddConfirmed());
            Payloads.check(recovered, 0, 99);
        }
    }

    @ParameterizedTest
    @EnumSource
    void aLedgerIsRecoveredWithoutAKilledMember(Wire wire) throws Exception {
        try (BookKeeper first = cluster.connect(wire); BookKeeper second = cluster.connect(wire)) {
            LedgerHandle writer = first.createLedger(3, 3, 2, DigestType.CRC32C, Payloads.PASSWORD);
            Payloads.append(writer, 50);
            cluster.bookie(lastEnsemble(writer).get(0)).kill();
            LedgerHandle recovered = second.openLedger(writer.getId(), DigestType.CRC32C, Payloads.PASSWORD);
            assertEquals(49, recovered.getLastAddConfirmed());
            Payloads.check(recovered, 0, 49);
        }
    }

    /** BookKeeper's own repair copies what a lost bookie had to others. */
    @ParameterizedTest
    @EnumSource
    void whatALostBookieHadIsCopiedToAnother(Wire wire) throws Exception {
        try (BookKeeper client = cluster.connect(wire)) {
            LedgerHandle writer = client.createLedger(3, 2, 2, DigestType.CRC32C, Payloads.PASSWORD);
            Payloads.append(writer, 60);
            writer.close();
            BookieId lost = lastEnsemble(writer).get(2);
            cluster.bookie(lost).kill();
            try (BookKeeperAdmin admin = new BookKeeperAdmin(client, cluster.configuration(wire))) {
                admin.recoverBookieData(writer.getId(), java.util.Set.of(lost), false, false);
            }
            LedgerHandle reader = client.openLedger(writer.getId(), DigestType.CRC32C, Payloads.PASSWORD);
            List<BookieId> members = lastEnsemble(reader);
            assertFalse(members.contains(lost), "the lost bookie is still a member");
            assertEquals(1, reader.getLedgerMetadata().getAllEnsembles().size());
            Payloads.check(reader, 0, 59);
            // With the first member dead, a third of the entries come from the new copies alone.
            cluster.bookie(members.get(0)).kill();
            Payloads.check(reader, 0, 59);
            assertTrue(cluster.bookies().size() >= members.size() + 2);
        }
    }
}
