package thermocline.interop;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerHandle;
import org.junit.jupiter.api.extension.ExtendWith;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import thermocline.interop.cluster.Cluster;
import thermocline.interop.cluster.SharedCluster;
import thermocline.interop.cluster.Wire;

/** Writers that choose the ids of their ledgers and entries. */
@ExtendWith(SharedCluster.class)
class AdvancedHandleTest {
    private final Cluster cluster;

    AdvancedHandleTest(Cluster cluster) {
        this.cluster = cluster;
    }

    @ParameterizedTest
    @EnumSource
    void entriesMayComeInAnyOrder(Wire wire) throws Exception {
        int count = 200;
        List<Long> ids = new ArrayList<>();
        for (long entry = 0; entry < count; entry++) {
            ids.add(entry);
        }
        Collections.shuffle(ids, new Random(1));
        try (BookKeeper client = cluster.connect(wire)) {
            LedgerHandle writer = client.createLedgerAdv(3, 2, 2, DigestType.CRC32C, Payloads.PASSWORD);
            List<CompletableFuture<Long>> adds = new ArrayList<>();
            for (long id : ids) {
                CompletableFuture<Long> add = new CompletableFuture<>();
                writer.asyncAddEntry(id, Payloads.of(writer.getId(), id), (code, handle, entry, context) -> {
                    if (code == BKException.Code.OK) {
                        add.complete(entry);
                    } else {
                        add.completeExceptionally(BKException.create(code));
                    }
                }, null);
                adds.add(add);
            }
            CompletableFuture.allOf(adds.toArray(CompletableFuture[]::new)).get(60, TimeUnit.SECONDS);
            assertEquals(count - 1, writer.getLastAddConfirmed());
            assertThrows(BKException.BKDuplicateEntryIdException.class, () -> writer.addEntry(7, new byte[3]));
            writer.close();
            LedgerHandle reader = client.openLedger(writer.getId(), DigestType.CRC32C, Payloads.PASSWORD);
            Payloads.check(reader, 0, count - 1);
        }
    }

    /** Entries beyond a gap are not confirmed, so a recovery that finds the gap ends the ledger there. */
    @ParameterizedTest
    @EnumSource
    void aGapEndsARecoveredLedger(Wire wire) throws Exception {
        try (BookKeeper first = cluster.connect(wire); BookKeeper second = cluster.connect(wire)) {
            LedgerHandle writer = first.createLedgerAdv(3, 3, 2, DigestType.CRC32C, Payloads.PASSWORD);
            for (long entry = 0; entry < 10; entry++) {
                writer.addEntry(entry, Payloads.of(writer.getId(), entry));
            }
            writer.asyncAddEntry(12, Payloads.of(writer.getId(), 12), (code, handle, entry, context) -> {}, null);
            LedgerHandle recovered = second.openLedger(writer.getId(), DigestType.CRC32C, Payloads.PASSWORD);
            assertEquals(9, recovered.getLastAddConfirmed());
            Payloads.check(recovered, 0, 9);
        }
    }

    @ParameterizedTest
    @EnumSource
    void aLedgerMayHaveAnyFreeId(Wire wire) throws Exception {
        long id = (1L << 40) + wire.ordinal();
        try (BookKeeper client = cluster.connect(wire)) {
            LedgerHandle writer =
                client.createLedgerAdv(id, 3, 3, 2, DigestType.CRC32C, Payloads.PASSWORD, Map.of());
            assertEquals(id, writer.getId());
            for (long entry = 0; entry < 5; entry++) {
                writer.addEntry(entry, Payloads.of(id, entry));
            }
            writer.close();
            assertThrows(BKException.BKLedgerExistException.class,
                () -> client.createLedgerAdv(id, 3, 3, 2, DigestType.CRC32C, Payloads.PASSWORD, Map.of()));
            Payloads.check(client.openLedger(id, DigestType.CRC32C, Payloads.PASSWORD), 0, 4);
        }
    }
}
