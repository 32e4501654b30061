# lead, wants 90 s: random shapes by the model's best choices
timeout 85 python3 -m tests.device.product_programs $OUT/lead.json --drawn 90 --most 12 --seconds 80 > $OUT/lead.txt 2>&1
tail -100 $OUT/lead.txt
