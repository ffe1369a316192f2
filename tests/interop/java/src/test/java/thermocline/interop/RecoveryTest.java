package thermocline.interop;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.net.BookieId;
import org.junit.jupiter.api.extension.ExtendWith;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;
import thermocline.interop.cluster.Cluster;
import thermocline.interop.cluster.SharedCluster;
import thermocline.interop.cluster.Waiting;
import thermocline.interop.cluster.Wire;

/** A ledger whose writer is gone, or only seems to be, is closed by another client. */
@ExtendWith(SharedCluster.class)
class RecoveryTest {
    private static final Duration SOON = Duration.ofSeconds(20);

    private final Cluster cluster;

    RecoveryTest(Cluster cluster) {
        this.cluster = cluster;
    }

    @ParameterizedTest
    @MethodSource("thermocline.interop.ReadWriteTest#wiresAndDigests")
    void recoveryKeepsWhatIsAcknowledgedAndFencesTheWriter(Wire wire, DigestType digest) throws Exception {
        try (BookKeeper first = cluster.connect(wire); BookKeeper second = cluster.connect(wire)) {
            LedgerHandle writer = first.createLedger(3, 2, 2, digest, Payloads.PASSWORD);
            Payloads.append(writer, 20);
            LedgerHandle recovered = second.openLedger(writer.getId(), digest, Payloads.PASSWORD);
            assertEquals(19, recovered.getLastAddConfirmed());
            assertEquals(Payloads.length(20), recovered.getLength());
            Payloads.check(recovered, 0, 19);
            assertThrows(BKException.BKLedgerFencedException.class, () -> Payloads.append(writer, 1));
        }
    }

    @ParameterizedTest
    @EnumSource
    void anEmptyLedgerIsRecovered(Wire wire) throws Exception {
        try (BookKeeper first = cluster.connect(wire); BookKeeper second = cluster.connect(wire)) {
            LedgerHandle writer = first.createLedger(3, 3, 2, DigestType.CRC32C, Payloads.PASSWORD);
            LedgerHandle recovered = second.openLedger(writer.getId(), DigestType.CRC32C, Payloads.PASSWORD);
            assertEquals(-1, recovered.getLastAddConfirmed());
            // No bookie has heard of this ledger but by the fence.
            assertThrows(BKException.BKLedgerFencedException.class, () -> Payloads.append(writer, 1));
        }
    }

    @ParameterizedTest
    @EnumSource
    void openingWithoutRecoveryLeavesTheWriterAlone(Wire wire) throws Exception {
        try (BookKeeper first = cluster.connect(wire); BookKeeper second = cluster.connect(wire)) {
            LedgerHandle writer = first.createLedger(3, 3, 2, DigestType.CRC32C, Payloads.PASSWORD);
            Payloads.append(writer, 5);
            second.openLedgerNoRecovery(writer.getId(), DigestType.CRC32C, Payloads.PASSWORD);
            Payloads.append(writer, 5);
            writer.close();
            assertEquals(9, writer.getLastAddConfirmed());
        }
    }

    @ParameterizedTest
    @EnumSource
    void aWrongPasswordDoesNotFence(Wire wire) throws Exception {
        byte[] wrong = {1, 2, 3};
        try (BookKeeper first = cluster.connect(wire); BookKeeper second = cluster.connect(wire)) {
            LedgerHandle writer = first.createLedger(3, 3, 2, DigestType.CRC32C, Payloads.PASSWORD);
            Payloads.append(writer, 5);
            assertThrows(BKException.BKUnauthorizedAccessException.class,
                () -> second.openLedger(writer.getId(), DigestType.CRC32C, wrong));
            Payloads.append(writer, 5);
            writer.close();
        }
    }

    /** The writer does not stop for the recovery: whatever it was told to be done is in the closed ledger. */
    @ParameterizedTest
    @EnumSource
    void nothingAcknowledgedIsLostToARecoveryUnderWrites(Wire wire) throws Exception {
        try (BookKeeper first = cluster.connect(wire); BookKeeper second = cluster.connect(wire)) {
            LedgerHandle writer = first.createLedger(3, 3, 2, DigestType.CRC32C, Payloads.PASSWORD);
            AtomicLong acknowledged = new AtomicLong(-1);
            CompletableFuture<Void> begun = new CompletableFuture<>();
            CompletableFuture<Void> ended = new CompletableFuture<>();
            Thread appender = new Thread(() -> {
                try {
                    List<CompletableFuture<Long>> window = new ArrayList<>();
                    for (long entry = 0; !ended.isDone(); entry++) {
                        CompletableFuture<Long> add = writer.appendAsync(Payloads.of(writer.getId(), entry));
                        add.whenComplete((id, failure) -> {
                            if (failure == null) {
                                acknowledged.accumulateAndGet(id, Math::max);
                            } else {
                                ended.complete(null);
                            }
                        });
                        window.add(add);
                        if (window.size() == 50) {
                            window.remove(0).handle((id, failure) -> null).join();
                            begun.complete(null);
                        }
                    }
                } catch (RuntimeException e) {
                    begun.completeExceptionally(e);
                }
            }, "appender");
            appender.start();
            begun.get(30, TimeUnit.SECONDS);
            LedgerHandle recovered = second.openLedger(writer.getId(), DigestType.CRC32C, Payloads.PASSWORD);
            ended.get(30, TimeUnit.SECONDS);
            appender.join();
            long end = recovered.getLastAddConfirmed();
            assertTrue(end >= acknowledged.get(), "acknowledged " + acknowledged + ", recovered to " + end);
            Payloads.check(recovered, 0, end);
        }
    }

    /** Over version 2 all of them send requests that look the same. */
    @ParameterizedTest
    @EnumSource
    void recoveriesAtTheSameTimeAgree(Wire wire) throws Exception {
        int openers = 8;
        ExecutorService threads = Executors.newFixedThreadPool(openers);
        try (BookKeeper first = cluster.connect(wire); BookKeeper second = cluster.connect(wire)) {
            LedgerHandle writer = first.createLedger(3, 3, 2, DigestType.CRC32C, Payloads.PASSWORD);
            Payloads.append(writer, 30);
            List<Callable<LedgerHandle>> calls = new ArrayList<>();
            for (int i = 0; i < openers; i++) {
                calls.add(() -> second.openLedger(writer.getId(), DigestType.CRC32C, Payloads.PASSWORD));
            }
            for (Future<LedgerHandle> opened : threads.invokeAll(calls, 60, TimeUnit.SECONDS)) {
                assertEquals(29, opened.get().getLastAddConfirmed());
                Payloads.check(opened.get(), 0, 29);
            }
        } finally {
            threads.shutdownNow();
        }
    }

    /** A fence is durable: the bookie is killed after it, and the old writer still finds it. */
    @ParameterizedTest
    @EnumSource
    void aFenceOutlivesTheBookie(Wire wire) throws Exception {
        try (BookKeeper first = cluster.connect(wire); BookKeeper second = cluster.connect(wire)) {
            LedgerHandle writer = first.createLedger(1, 1, 1, DigestType.CRC32C, Payloads.PASSWORD);
            Payloads.append(writer, 10);
            BookieId member = writer.getLedgerMetadata().getAllEnsembles().get(0L).get(0);
            LedgerHandle recovered = second.openLedger(writer.getId(), DigestType.CRC32C, Payloads.PASSWORD);
            assertEquals(9, recovered.getLastAddConfirmed());
            cluster.bookie(member).restart();
            Waiting.until("the writer's client reaches the bookie again", SOON, () -> {
                try {
                    Payloads.check(writer, 0, 9);
                    return true;
                } catch (BKException unreachable) {
                    return false;
                }
            });
            assertThrows(BKException.BKLedgerFencedException.class, () -> Payloads.append(writer, 1));
            LedgerHandle again = second.openLedger(writer.getId(), DigestType.CRC32C, Payloads.PASSWORD);
            assertEquals(9, again.getLastAddConfirmed());
        }
    }
}
